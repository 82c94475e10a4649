#include "runtime/data/files/readers.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void libsvm(Input input) {
  const std::string path = file_of(input, "x.libsvm");
  for (const Dims& features : {Dims{"batch", 3}, Dims{"batch", "features"}}) {
    const std::vector<InputSpec> inputs = {{"x", {DType::kFloat, features}},
                                           {"labels", {DType::kInt64, Dims{"batch"}}, /*from_loss=*/true}};
    try_to([&] {
      const DataArrays file = open_libsvm(path, inputs, {});
      for (const auto& [name, rows] : file.arrays) {
        if (num_elements(rows.spec().shape) < 1 << 20) rows.read_all();
      }
    });
  }
}

}  // namespace onnx_train::fuzz
