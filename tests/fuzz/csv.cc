#include "runtime/data/files/readers.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {
namespace {

std::vector<InputSpec> with_labels(const std::string& name, TensorType type) {
  return {{name, std::move(type)}, {"labels", {DType::kInt64, Dims{"batch"}}, /*from_loss=*/true}};
}

// Of numbers, of pictures, and of texts.
const std::vector<InputSpec> kReaders[] = {
    with_labels("x", {DType::kFloat, Dims{"batch", 2}}),
    with_labels("image", {DType::kFloat, Dims{"batch", 3, 8, 8}}),
    with_labels("input_ids", {DType::kInt64, Dims{"batch", 4}}),
};

}  // namespace

void csv(Input input) {
  const std::string path = file_of(input, "x.csv");
  ReadOptions options;
  options.missing = "mean";
  for (const auto& inputs : kReaders) {
    try_to([&] {
      const DataArrays file = open_csv(path, inputs, options);
      for (const auto& [name, rows] : file.arrays) rows.read_all().clone();
    });
  }
}

}  // namespace onnx_train::fuzz
