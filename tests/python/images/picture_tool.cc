// Shows the tests what becomes of a picture: picture_tool FILE [CHANGE NUMBER...] writes height, width and channels as
// three 32-bit integers and the bytes to the standard output. On failure it prints the message and returns 1.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>

#include "onnx_passes/ir/error.h"
#include "runtime/data/images/decode.h"
#include "runtime/data/images/transform.h"

namespace onnx_train {
namespace {

using Numbers = std::vector<double>;
using Change = std::function<Picture(Picture, const Numbers&)>;

Change in_place(void (*change)(Picture*, double)) {
  return [change](Picture picture, const Numbers& n) {
    change(&picture, n[0]);
    return picture;
  };
}

Change in_place(void (*change)(Picture*)) {
  return [change](Picture picture, const Numbers&) {
    change(&picture);
    return picture;
  };
}

Change resize_by(Filter filter) {
  return [filter](const Picture& picture, const Numbers& n) {
    return resized(picture, static_cast<int>(n[0]), static_cast<int>(n[1]), filter);
  };
}

Change rotate_by(Filter filter) {
  return [filter](const Picture& picture, const Numbers& n) { return moved(picture, rotation(picture, n[0]), filter); };
}

Picture changed(const std::string& name, Picture picture, const Numbers& numbers) {
  static const std::map<std::string, Change> kChanges = {
      {"bilinear", resize_by(Filter::kBilinear)},
      {"bicubic", resize_by(Filter::kBicubic)},
      {"nearest", resize_by(Filter::kNearest)},
      {"crop",
       [](const Picture& p, const Numbers& n) {
         return cropped(
             p, {static_cast<int>(n[0]), static_cast<int>(n[1]), static_cast<int>(n[2]), static_cast<int>(n[3])});
       }},
      {"flip", in_place(flip_left_right)},
      {"vflip", in_place(flip_top_bottom)},
      {"rotate", rotate_by(Filter::kBilinear)},
      {"rotate_nearest", rotate_by(Filter::kNearest)},
      {"brightness", in_place(change_brightness)},
      {"contrast", in_place(change_contrast)},
      {"saturation", in_place(change_saturation)},
      {"hue", in_place(change_hue)},
      {"sharpness", in_place(change_sharpness)},
      {"autocontrast", in_place(stretch_contrast)},
      {"equalize", in_place(equalize)},
      {"grey", [](const Picture& p, const Numbers&) { return to_grey(p); }},
      {"rgb", [](const Picture& p, const Numbers&) { return to_rgb(p); }},
  };
  return kChanges.at(name)(std::move(picture), numbers);
}

}  // namespace
}  // namespace onnx_train

int main(int argc, char** argv) {
  using namespace onnx_train;
  try {
    const bool is_mask = argc > 2 && std::strcmp(argv[2], "mask") == 0;
    Picture picture = is_mask ? decode_mask(argv[1]) : decode_picture(argv[1]);
    Numbers numbers;
    for (int i = 3; i < argc; ++i) numbers.push_back(std::atof(argv[i]));
    if (argc > 2 && !is_mask) picture = changed(argv[2], std::move(picture), numbers);
    const int32_t sizes[] = {picture.height, picture.width, picture.channels};
    std::fwrite(sizes, sizeof sizes, 1, stdout);
    std::fwrite(picture.bytes.data(), 1, picture.bytes.size(), stdout);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
