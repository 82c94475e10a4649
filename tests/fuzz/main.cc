// libFuzzer's entry of one harness, ONNX_TRAIN_HARNESS.
#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  onnx_train::fuzz::ONNX_TRAIN_HARNESS({data, size});
  return 0;
}
