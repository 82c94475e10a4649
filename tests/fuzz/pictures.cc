#include "runtime/data/images/decode.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void pictures(Input input) {
  static const std::string name = "x.png";
  const EncodedPicture file{name, input.data(), input.size()};
  try_to([&] { decode_picture(file); });
  try_to([&] { decode_mask(file); });
}

}  // namespace onnx_train::fuzz
