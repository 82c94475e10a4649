#include "runtime/data/files/npy.h"

#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void npy(Input input) {
  try_to([&] { parse_npy(input.data(), input.size(), nullptr, "x.npy").clone(); });
}

}  // namespace onnx_train::fuzz
