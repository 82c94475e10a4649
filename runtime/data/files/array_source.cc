// Arrays that have been read already.
#include "onnx_passes/ir/error.h"
#include "runtime/data/files/readers.h"

namespace onnx_train {
namespace {

class ArraySource : public DataSource {
 public:
  ArraySource(std::string path, DataArrays arrays) : path_(std::move(path)), arrays_(std::move(arrays)) {}

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : arrays_.tensors) names.push_back(name);
    return names;
  }
  bool contains(const std::string& name) const override { return arrays_.tensors.count(name) > 0; }
  Tensor read(const std::string& name) const override {
    const auto found = arrays_.tensors.find(name);
    if (found == arrays_.tensors.end()) fail_as(ErrorCode::kFile, path_, " has no array '", name, "'");
    return found->second;
  }
  std::string summary() const override { return arrays_.summary; }
  std::vector<std::string> notes() const override { return arrays_.notes; }
  std::map<std::string, std::string> metadata() const override { return arrays_.metadata; }

 private:
  std::string path_;
  DataArrays arrays_;
};

}  // namespace

std::unique_ptr<DataSource> make_source(const std::string& path, TensorMap arrays) {
  DataArrays data;
  data.tensors = std::move(arrays);
  return make_source(path, std::move(data));
}

std::unique_ptr<DataSource> make_source(const std::string& path, DataArrays arrays) {
  return std::make_unique<ArraySource>(path, std::move(arrays));
}

}  // namespace onnx_train
