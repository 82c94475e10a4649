#include "runtime/data/images/files.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void coco(Input input) {
  const std::string path = file_of(input, "annotations.json");
  try_to([&] { read_coco(path); });
}

}  // namespace onnx_train::fuzz
