#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/data/images/transform.h"

namespace onnx_train {

AffineMap then(const AffineMap& first, const AffineMap& second) {
  const auto& [a, b, c, d, e, f] = second;
  return {a * first.a + b * first.d, a * first.b + b * first.e, a * first.c + b * first.f + c,
          d * first.a + e * first.d, d * first.b + e * first.e, d * first.c + e * first.f + f};
}

namespace {

AffineMap inverse(const AffineMap& map) {
  const double determinant = map.a * map.e - map.b * map.d;
  const double a = map.e / determinant, b = -map.b / determinant;
  const double d = -map.d / determinant, e = map.a / determinant;
  return {a, b, -a * map.c - b * map.f, d, e, -d * map.c - e * map.f};
}

}  // namespace

void flip_left_right(Picture* picture) {
  picture->from_original = then(picture->from_original, {-1, 0, double(picture->width), 0, 1, 0});
  for (int y = 0; y < picture->height; ++y) {
    for (int x = 0; x < picture->width / 2; ++x) {
      std::swap_ranges(picture->at(y, x), picture->at(y, x) + picture->channels,
                       picture->at(y, picture->width - 1 - x));
    }
  }
}

void flip_top_bottom(Picture* picture) {
  picture->from_original = then(picture->from_original, {1, 0, 0, 0, -1, double(picture->height)});
  const int row = picture->width * picture->channels;
  for (int y = 0; y < picture->height / 2; ++y) {
    std::swap_ranges(picture->at(y, 0), picture->at(y, 0) + row, picture->at(picture->height - 1 - y, 0));
  }
}

Picture turned(Picture from, int orientation) {
  const bool swaps = orientation >= 5;
  if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) flip_left_right(&from);
  if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) flip_top_bottom(&from);
  if (!swaps) return from;
  Picture to(from.width, from.height, from.channels);
  to.from_original = then(from.from_original, {0, 1, 0, 1, 0, 0});
  if (to.channels == 0) return to;
  for (int y = 0; y < to.height; ++y) {
    for (int x = 0; x < to.width; ++x) std::copy_n(from.at(x, y), from.channels, to.at(y, x));
  }
  return to;
}

AffineMap rotation(const Picture& picture, double degrees) {
  const double angle = -degrees * std::numbers::pi / 180, cosine = std::cos(angle), sine = std::sin(angle);
  const double x = picture.width / 2.0, y = picture.height / 2.0;
  return {cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y};
}

Picture moved(const Picture& from, const AffineMap& map, Filter filter) {
  Picture to(from.height, from.width, from.channels);
  to.from_original = then(from.from_original, inverse(map));
  if (to.channels == 0) return to;
  for (int y = 0; y < to.height; ++y) {
    for (int x = 0; x < to.width; ++x) {
      double from_x = map.a * (x + 0.5) + map.b * (y + 0.5) + map.c;
      double from_y = map.d * (x + 0.5) + map.e * (y + 0.5) + map.f;
      if (!(from_x >= 0 && from_x < from.width && from_y >= 0 && from_y < from.height)) continue;
      uint8_t* out = to.at(y, x);
      if (filter == Filter::kNearest) {
        std::copy_n(from.at(static_cast<int>(from_y), static_cast<int>(from_x)), from.channels, out);
        continue;
      }
      from_x -= 0.5;
      from_y -= 0.5;
      const double floor_x = std::floor(from_x), floor_y = std::floor(from_y);
      const double dx = from_x - floor_x, dy = from_y - floor_y;
      const auto inside = [](double at, int size) { return std::clamp(static_cast<int>(at), 0, size - 1); };
      const int left = inside(floor_x, from.width), right = inside(floor_x + 1, from.width);
      const int top = inside(floor_y, from.height), bottom = inside(floor_y + 1, from.height);
      for (int c = 0; c < from.channels; ++c) {
        const double above = from.at(top, left)[c] + dx * (from.at(top, right)[c] - from.at(top, left)[c]);
        const double below = from.at(bottom, left)[c] + dx * (from.at(bottom, right)[c] - from.at(bottom, left)[c]);
        out[c] = static_cast<uint8_t>(above + dy * (below - above));
      }
    }
  }
  return to;
}

}  // namespace onnx_train
