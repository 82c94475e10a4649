// Reads PNG, JPEG and WebP files. A file is told by its first bytes, not by its name. Nothing in it is trusted: the
// size is taken from its header before memory is asked for, and every fault is one Error of the code kFile that names
// the file. Functions run on any thread.
#pragma once

#include <string>

#include "runtime/data/images/picture.h"

namespace onnx_train {

// Pixels that a file may claim to have; where Pillow warns of a decompression bomb. Such a picture is 268 MB.
constexpr int64_t kMostPixels = 89'478'485;

// The picture with 3 channels (red, green, blue), or with 1 if it is stored in grey levels. Alpha is dropped, 16 bits
// become 8, CMYK becomes RGB, as Pillow converts them. All formats are turned as their EXIF orientation says.
Picture decode_picture(const std::string& path);

// The classes of a palette or grey PNG, as they are stored: palette indices, or grey values of 1 to 16 bits. It is
// turned likewise.
Picture decode_mask(const std::string& path);

// A mask, or the picture without channels that boxes have, as the picture in the file `path` is shown. One that has the
// size in which that picture is stored, lying on its side, is turned with it. Any other is returned as it is.
Picture turned_with(const std::string& path, Picture mask);

// Whether the name ends as those of such files.
bool is_picture_name(const std::string& path);
// Whether the name ends as those of pictures of other formats.
bool is_other_picture_name(const std::string& path);

// Throws Error of the code kUsage that names `path` in a build without decoders (CMake's ONNX_TRAIN_MINIMAL).
void expect_decoders(const std::string& path);

// What the decoders (decoders/) share: the bytes of a file, and where they are.
struct EncodedPicture {
  const std::string& path;
  const unsigned char* data;
  size_t size;
};

// As the functions of the same names that read a file.
Picture decode_picture(const EncodedPicture& file);
Picture decode_mask(const EncodedPicture& file);

enum class PictureKind { kPng, kJpeg, kWebp };

// The tag 0x0112 of the first directory: 1 to 8; 1 where there is none.
int exif_orientation(const EncodedPicture& file, PictureKind kind);

// Throws Error if the header's size is too large, or not a size.
void check_picture_size(const EncodedPicture& file, int64_t width, int64_t height);
[[noreturn]] void fail_picture(const EncodedPicture& file, const std::string& why);

Picture decode_png(const EncodedPicture& file, bool as_mask);
Picture decode_jpeg(const EncodedPicture& file);
Picture decode_webp(const EncodedPicture& file);

}  // namespace onnx_train
