#include <webp/decode.h>

#include "runtime/data/images/decode.h"

namespace onnx_train {

Picture decode_webp(const EncodedPicture& file) {
  int width = 0, height = 0;
  if (!WebPGetInfo(file.data, file.size, &width, &height)) fail_picture(file, "its header is damaged");
  check_picture_size(file, width, height);
  Picture picture(height, width, 3);
  if (!WebPDecodeRGBInto(file.data, file.size, picture.bytes.data(), picture.bytes.size(), width * 3)) {
    fail_picture(file, "it is cut off or damaged");
  }
  return picture;
}

void expect_decoders(const std::string&) {}

}  // namespace onnx_train
