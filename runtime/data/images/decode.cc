#include "runtime/data/images/decode.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "onnx_passes/io/file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/images/transform.h"

namespace onnx_train {
namespace {

// Read, not mapped: a mapping of each of a million files costs more than their bytes.
std::string read_picture(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) fail_as(ErrorCode::kPicture, "there is no picture at ", path);
  return read_file(path);
}

// In lower case, with its dot.
std::string suffix_of(const std::string& path) {
  std::string suffix = std::filesystem::path(path).extension().string();
  for (char& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return suffix;
}

PictureKind kind_of(const EncodedPicture& file) {
  const std::string_view start(reinterpret_cast<const char*>(file.data), std::min<size_t>(file.size, 12));
  if (start.starts_with("\x89PNG")) return PictureKind::kPng;
  if (start.starts_with("\xff\xd8")) return PictureKind::kJpeg;
  if (start.starts_with("RIFF") && start.ends_with("WEBP") && start.size() == 12) return PictureKind::kWebp;
  fail_picture(file, file.size == 0 ? "the file is empty" : "it is no PNG, JPEG or WebP file");
}

}  // namespace

void fail_picture(const EncodedPicture& file, const std::string& why) {
  fail_as(ErrorCode::kPicture, "the picture ", file.path, " cannot be read: ", why);
}

void check_picture_size(const EncodedPicture& file, int64_t width, int64_t height) {
  if (width < 1 || height < 1) fail_picture(file, concat("its header says ", width, " x ", height, " pixels"));
  if (width > kMostPixels / height) {
    fail_picture(file, concat("its header says ", width, " x ", height, " pixels; at most ", kMostPixels, " are read"));
  }
}

namespace {

Picture decode_as_stored(const EncodedPicture& file, PictureKind kind) {
  switch (kind) {
    case PictureKind::kPng: return decode_png(file, /*as_mask=*/false);
    case PictureKind::kJpeg: return decode_jpeg(file);
    case PictureKind::kWebp: break;
  }
  return decode_webp(file);
}

// What is read afterwards, such as boxes, refers to the picture as it is shown.
Picture shown(Picture stored, const EncodedPicture& file, PictureKind kind) {
  Picture picture = turned(std::move(stored), exif_orientation(file, kind));
  picture.from_original = {};
  return picture;
}

}  // namespace

Picture decode_picture(const EncodedPicture& file) {
  const PictureKind kind = kind_of(file);
  return shown(decode_as_stored(file, kind), file, kind);
}

Picture decode_picture(const std::string& path) {
  const std::string bytes = read_picture(path);
  return decode_picture({path, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()});
}

Picture decode_mask(const EncodedPicture& file) {
  if (kind_of(file) != PictureKind::kPng) {
    fail_picture(file, "a mask is a PNG file, since JPEG and WebP change its classes");
  }
  return shown(decode_png(file, /*as_mask=*/true), file, PictureKind::kPng);
}

Picture decode_mask(const std::string& path) {
  const std::string bytes = read_picture(path);
  return decode_mask({path, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()});
}

Picture turned_with(const std::string& path, Picture mask) {
  const std::string bytes = read_picture(path);
  const EncodedPicture file{path, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()};
  const PictureKind kind = kind_of(file);
  const int orientation = exif_orientation(file, kind);
  if (orientation < 5 || mask.width == mask.height) return mask;
  const Picture stored = decode_as_stored(file, kind);
  const bool is_of_stored = mask.width == stored.width && mask.height == stored.height;
  return is_of_stored ? turned(std::move(mask), orientation) : mask;
}

bool is_picture_name(const std::string& path) {
  const std::string suffix = suffix_of(path);
  return suffix == ".png" || suffix == ".jpg" || suffix == ".jpeg" || suffix == ".webp";
}

bool is_other_picture_name(const std::string& path) {
  constexpr const char* kOthers[] = {".avif", ".bmp", ".dng", ".gif", ".heic", ".heif", ".ico", ".jfif", ".jp2",
                                     ".jxl",  ".pbm", ".pgm", ".pnm", ".ppm",  ".svg",  ".tga", ".tif",  ".tiff"};
  const std::string suffix = suffix_of(path);
  return std::any_of(std::begin(kOthers), std::end(kOthers), [&](const char* other) { return suffix == other; });
}

}  // namespace onnx_train
