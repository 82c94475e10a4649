#include "runtime/data/files/readers.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {
namespace {

InputSpec labels() { return {"labels", {DType::kInt64, Dims{"batch"}}, /*from_loss=*/true}; }

// Of numbers, of pictures, and of texts.
const std::vector<InputSpec> kReaders[] = {
    {{"x", {DType::kFloat, Dims{"batch", 2}}}, labels()},
    {{"image", {DType::kFloat, Dims{"batch", 3, 8, 8}}}, labels()},
    {{"input_ids", {DType::kInt64, Dims{"batch", 4}}}, labels()},
};

}  // namespace

void csv(Input input) {
  const std::string path = file_of(input, "x.csv");
  ReadOptions options;
  options.missing = "mean";
  for (const auto& inputs : kReaders) {
    try_to([&] {
      const auto source = open_csv(path, inputs, options);
      for (const std::string& name : source->names()) source->read(name).clone();
      source->metadata();
    });
  }
}

}  // namespace onnx_train::fuzz
