#include "runtime/data/files/npz.h"

#include <map>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/table_metadata.h"
#include "runtime/data/class_names.h"
#include "runtime/data/files/npy.h"
#include "runtime/data/files/readers.h"
#include "runtime/data/files/zip.h"

namespace onnx_train {
namespace {

constexpr std::string_view kSuffix = ".npy";

class NpzSource : public DataSource {
 public:
  explicit NpzSource(const std::string& path) : path_(path), archive_(MappedFile::open(path)) {
    for (const ZipEntry& entry : archive_.entries()) {
      if (entry.name.ends_with(kSuffix)) index_[entry.name.substr(0, entry.name.size() - kSuffix.size())] = &entry;
    }
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, entry] : index_) {
      if (name != kClassNames) names.push_back(name);
    }
    return names;
  }
  bool contains(const std::string& name) const override { return index_.count(name) > 0; }
  Tensor read(const std::string& name) const override {
    const auto found = index_.find(name);
    if (found == index_.end()) fail_as(ErrorCode::kFile, path_, " has no array '", name, "'");
    const ZipData bytes = archive_.read(*found->second);
    return parse_npy(bytes.data, bytes.size, bytes.owner, concat(path_, ": '", name, "'"));
  }

  // onnx_train.tokenize_labelled keeps the names of classes as bytes.
  std::map<std::string, std::string> metadata() const override {
    if (!contains(kClassNames)) return {};
    const Tensor bytes = read(kClassNames);
    const bool is_text = bytes.dtype() == DType::kUint8 && bytes.shape().size() == 1;
    const std::string text = is_text ? std::string(bytes.data<char>(), bytes.bytes()) : "";
    if (classes_from_json(text).empty()) fail_as(ErrorCode::kFile, path_, ": '", kClassNames, "' is no list of names");
    return {{kClassNames, text}};
  }

 private:
  std::string path_;
  ZipArchive archive_;
  std::map<std::string, const ZipEntry*> index_;
};

}  // namespace

std::unique_ptr<DataSource> open_npz(const std::string& path) { return std::make_unique<NpzSource>(path); }

void write_npz(const std::string& path, const TensorMap& arrays) {
  ZipWriter writer;
  for (const auto& [name, tensor] : arrays) {
    const std::string header = npy_header(tensor.dtype(), tensor.shape());
    writer.add(name + std::string(kSuffix), {{header.data(), header.size()}, {tensor.data(), tensor.bytes()}});
  }
  write_file(path, writer.finish());
}

}  // namespace onnx_train
