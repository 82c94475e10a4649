#include "runtime/data/files/readers.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void idx(Input input) {
  static const std::vector<InputSpec> inputs = {{"x", {DType::kFloat, Dims{"batch", 1, 4, 4}}}};
  for (const char* name : {"train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"}) {
    const std::string path = file_of(input, name);
    try_to([&] { open_idx(path, "", inputs).arrays.at("x").read_all().clone(); });
  }
}

}  // namespace onnx_train::fuzz
