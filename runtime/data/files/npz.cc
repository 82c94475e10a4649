#include "runtime/data/files/npz.h"

#include <memory>

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

// The names of classes, which onnx_train.tokenize_labelled keeps as bytes.
std::string read_class_names(const std::string& path, const Tensor& bytes) {
  const bool is_text = bytes.dtype() == DType::kUint8 && bytes.shape().size() == 1;
  const std::string text = is_text ? std::string(bytes.data<char>(), bytes.bytes()) : "";
  if (classes_from_json(text).empty()) fail_as(ErrorCode::kFile, path, ": '", kClassNames, "' is no list of names");
  return text;
}

}  // namespace

DataArrays open_npz(const std::string& path) {
  const auto archive = std::make_shared<const ZipArchive>(MappedFile::open(path));
  DataArrays file;
  for (const ZipEntry& entry : archive->entries()) {
    if (!entry.name.ends_with(kSuffix)) continue;
    const std::string name = entry.name.substr(0, entry.name.size() - kSuffix.size());
    const auto read = [path, name, archive, &entry] {
      const ZipData bytes = archive->read(entry);
      return parse_npy(bytes.data, bytes.size, bytes.owner, concat(path, ": '", name, "'"));
    };
    if (name == kClassNames) {
      file.metadata[kClassNames] = read_class_names(path, read());
    } else {
      file.arrays[name] = Rows::in_file(read);
    }
  }
  return file;
}

void write_npz(const std::string& path, const TensorMap& arrays) {
  ZipWriter writer;
  for (const auto& [name, tensor] : arrays) {
    const std::string header = npy_header(tensor.dtype(), tensor.shape());
    writer.add(name + std::string(kSuffix), {{header.data(), header.size()}, {tensor.data(), tensor.bytes()}});
  }
  write_file(path, writer.finish());
}

}  // namespace onnx_train
