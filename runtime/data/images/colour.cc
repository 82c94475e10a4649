#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/data/images/transform.h"

namespace onnx_train {
namespace {

// ITU-R 601-2, in 16 bits after the point.
uint8_t grey_level(const uint8_t* rgb) {
  return static_cast<uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

// from + factor (to - from), also beyond both.
uint8_t blended(int from, int to, float factor) {
  return static_cast<uint8_t>(
      std::clamp(static_cast<float>(from) + factor * static_cast<float>(to - from), 0.f, 255.f));
}

using Histogram = std::array<int64_t, 256>;

Histogram histogram_of(const Picture& picture, int channel) {
  Histogram histogram{};
  for (size_t i = static_cast<size_t>(channel); i < picture.bytes.size(); i += static_cast<size_t>(picture.channels)) {
    ++histogram[picture.bytes[i]];
  }
  return histogram;
}

void map_channel(Picture* picture, int channel, const uint8_t (&table)[256]) {
  for (size_t i = static_cast<size_t>(channel); i < picture->bytes.size();
       i += static_cast<size_t>(picture->channels)) {
    picture->bytes[i] = table[picture->bytes[i]];
  }
}

void turn_hue(uint8_t* rgb, uint8_t turn) {
  const int high = std::max({rgb[0], rgb[1], rgb[2]}), low = std::min({rgb[0], rgb[1], rgb[2]});
  if (high == low) return;
  const float range = static_cast<float>(high - low);
  const auto below = [&](int c) { return static_cast<float>(high - rgb[c]) / range; };
  // In both precisions by turns, as Pillow does.
  auto hue = static_cast<float>(rgb[0] == high   ? below(2) - below(1)
                                : rgb[1] == high ? 2.0 + below(0) - below(2)
                                                 : 4.0 + below(1) - below(0));
  hue = static_cast<float>(std::fmod(hue / 6.0 + 1, 1.0));
  const auto stored = static_cast<uint8_t>(static_cast<uint8_t>(hue * 255.0) + turn);
  const float part_of_colour = range / static_cast<float>(high);
  const auto saturation = static_cast<float>(static_cast<uint8_t>(part_of_colour * 255.0) / 255.0);
  if (saturation == 0) {
    std::fill_n(rgb, 3, static_cast<uint8_t>(high));
    return;
  }
  const double position = stored * 6.0 / 255, sector = std::floor(position);
  const auto part = static_cast<float>(position - sector);
  const auto level = [&](double x) { return static_cast<uint8_t>(std::round(high * x)); };
  const uint8_t v = static_cast<uint8_t>(high), p = level(1.0 - saturation), q = level(1.0 - saturation * part),
                t = level(1.0 - saturation * (1.0 - part));
  const uint8_t sectors[6][3] = {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}};
  std::copy_n(sectors[static_cast<int>(sector) % 6], 3, rgb);
}

}  // namespace

Picture to_grey(const Picture& from) {
  if (from.channels == 1) return from;
  Picture grey(from.height, from.width, 1);
  grey.from_original = from.from_original;
  for (size_t i = 0; i < grey.bytes.size(); ++i) grey.bytes[i] = grey_level(from.bytes.data() + 3 * i);
  return grey;
}

Picture to_rgb(const Picture& from) {
  if (from.channels == 3) return from;
  Picture rgb(from.height, from.width, 3);
  rgb.from_original = from.from_original;
  for (size_t i = 0; i < from.bytes.size(); ++i) std::fill_n(rgb.bytes.data() + 3 * i, 3, from.bytes[i]);
  return rgb;
}

void map_values(Picture* picture, const uint8_t (&table)[256]) {
  for (uint8_t& value : picture->bytes) value = table[value];
}

void change_brightness(Picture* picture, double factor) {
  uint8_t table[256];
  for (int v = 0; v < 256; ++v) table[v] = blended(0, v, static_cast<float>(factor));
  map_values(picture, table);
}

void change_contrast(Picture* picture, double factor) {
  const Picture grey = to_grey(*picture);
  int64_t sum = 0;
  for (const uint8_t level : grey.bytes) sum += level;
  const int mean = static_cast<int>(static_cast<double>(sum) / static_cast<double>(grey.bytes.size()) + 0.5);
  uint8_t table[256];
  for (int v = 0; v < 256; ++v) table[v] = blended(mean, v, static_cast<float>(factor));
  map_values(picture, table);
}

void change_saturation(Picture* picture, double factor) {
  if (picture->channels != 3) return;
  for (size_t i = 0; i < picture->bytes.size(); i += 3) {
    uint8_t* rgb = picture->bytes.data() + i;
    const int grey = grey_level(rgb);
    for (int c = 0; c < 3; ++c) rgb[c] = blended(grey, rgb[c], static_cast<float>(factor));
  }
}

void change_hue(Picture* picture, double turn) {
  if (picture->channels != 3) return;
  const auto step = static_cast<uint8_t>(static_cast<int>(turn * 255));
  for (size_t i = 0; i < picture->bytes.size(); i += 3) turn_hue(picture->bytes.data() + i, step);
}

void stretch_contrast(Picture* picture) {
  for (int c = 0; c < picture->channels; ++c) {
    const Histogram histogram = histogram_of(*picture, c);
    int low = 0, high = 255;
    while (low < 255 && histogram[static_cast<size_t>(low)] == 0) ++low;
    while (high > 0 && histogram[static_cast<size_t>(high)] == 0) --high;
    if (high <= low) continue;
    const double scale = 255.0 / (high - low);
    uint8_t table[256];
    for (int v = 0; v < 256; ++v)
      table[v] = static_cast<uint8_t>(std::clamp(static_cast<int>(v * scale - low * scale), 0, 255));
    map_channel(picture, c, table);
  }
}

void equalize(Picture* picture) {
  for (int c = 0; c < picture->channels; ++c) {
    const Histogram histogram = histogram_of(*picture, c);
    int64_t all = 0, last = 0;
    int levels = 0;
    for (const int64_t count : histogram) {
      if (count == 0) continue;
      all += count;
      last = count;
      ++levels;
    }
    const int64_t step = (all - last) / 255;
    if (levels <= 1 || step == 0) continue;
    int64_t sum = step / 2;
    uint8_t table[256];
    for (size_t v = 0; v < 256; ++v) {
      table[v] = static_cast<uint8_t>(std::min<int64_t>(sum / step, 255));
      sum += histogram[v];
    }
    map_channel(picture, c, table);
  }
}

// Smoothed by [1 1 1; 1 5 1; 1 1 1] / 13; the border stays.
void change_sharpness(Picture* picture, double factor) {
  const Picture from = *picture;
  for (int y = 1; y + 1 < from.height; ++y) {
    for (int x = 1; x + 1 < from.width; ++x) {
      for (int c = 0; c < from.channels; ++c) {
        int sum = 4 * from.at(y, x)[c];
        for (int dy = -1; dy <= 1; ++dy) {
          for (int dx = -1; dx <= 1; ++dx) sum += from.at(y + dy, x + dx)[c];
        }
        picture->at(y, x)[c] = blended((2 * sum + 13) / 26, from.at(y, x)[c], static_cast<float>(factor));
      }
    }
  }
}

}  // namespace onnx_train
