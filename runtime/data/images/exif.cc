// The orientation that EXIF says: Exif 2.32, section 4.6. The block of tags is a small TIFF file, which each format
// keeps in a part of its own.
#include <algorithm>
#include <string_view>

#include "runtime/data/images/decode.h"

namespace onnx_train {
namespace {

// A part of the file. Numbers that are not in it are 0.
struct Bytes {
  std::string_view all;

  size_t number(size_t at, size_t bytes, bool is_little) const {
    if (at > all.size() || bytes > all.size() - at) return 0;
    size_t value = 0;
    for (size_t i = 0; i < bytes; ++i)
      value = value << 8 | static_cast<unsigned char>(all[at + (is_little ? bytes - 1 - i : i)]);
    return value;
  }
  std::string_view part(size_t at, size_t bytes) const { return at > all.size() ? "" : all.substr(at, bytes); }
};

constexpr std::string_view kPrefix{"Exif\0\0", 6};

std::string_view exif_of_jpeg(const Bytes& file) {
  constexpr size_t kApp1 = 0xe1, kStartOfScan = 0xda, kEnd = 0xd9;
  for (size_t at = 2; at + 4 <= file.all.size();) {
    if (file.number(at, 1, false) != 0xff) return "";
    const size_t marker = file.number(at + 1, 1, false);
    if (marker == 0xff) {  // filling
      ++at;
      continue;
    }
    if (marker == kStartOfScan || marker == kEnd) return "";
    const size_t length = file.number(at + 2, 2, false);
    const std::string_view part = file.part(at + 4, std::max<size_t>(length, 2) - 2);
    if (marker == kApp1 && part.starts_with(kPrefix)) return part;
    at += 2 + std::max<size_t>(length, 2);
  }
  return "";
}

std::string_view exif_of_png(const Bytes& file) {
  for (size_t at = 8; at + 12 <= file.all.size();) {
    const size_t length = file.number(at, 4, false);
    if (file.part(at + 4, 4) == "eXIf") return file.part(at + 8, length);
    at += 12 + length;
  }
  return "";
}

std::string_view exif_of_webp(const Bytes& file) {
  for (size_t at = 12; at + 8 <= file.all.size();) {
    const size_t length = file.number(at + 4, 4, true);
    if (file.part(at, 4) == "EXIF") return file.part(at + 8, length);
    at += 8 + length + length % 2;
  }
  return "";
}

}  // namespace

int exif_orientation(const EncodedPicture& file, PictureKind kind) {
  constexpr size_t kOrientation = 0x0112;
  const Bytes all{{reinterpret_cast<const char*>(file.data), file.size}};
  Bytes tiff{kind == PictureKind::kPng    ? exif_of_png(all)
             : kind == PictureKind::kJpeg ? exif_of_jpeg(all)
                                          : exif_of_webp(all)};
  if (tiff.all.starts_with(kPrefix)) tiff.all.remove_prefix(kPrefix.size());
  const bool is_little = tiff.all.starts_with("II");
  if (!is_little && !tiff.all.starts_with("MM")) return 1;
  const size_t directory = tiff.number(4, 4, is_little), count = tiff.number(directory, 2, is_little);
  for (size_t i = 0; i < count; ++i) {
    const size_t entry = directory + 2 + 12 * i;
    if (entry > tiff.all.size()) return 1;
    if (tiff.number(entry, 2, is_little) != kOrientation) continue;
    constexpr size_t kLong = 4;
    const size_t value = tiff.number(entry + 8, tiff.number(entry + 2, 2, is_little) == kLong ? 4 : 2, is_little);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace onnx_train
