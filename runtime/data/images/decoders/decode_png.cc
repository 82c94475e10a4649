// PNG by libpng. Its errors jump: between setjmp and the end of a function no object with a destructor is made.
#include <csetjmp>
#include <cstring>

#include <png.h>

#include "onnx_passes/ir/error.h"
#include "runtime/data/images/decode.h"

namespace onnx_train {
namespace {

struct PngReading {
  png_structp png = nullptr;
  png_infop info = nullptr;
  const unsigned char* data;
  size_t left;
  char message[128] = "";
  std::jmp_buf jump;

  explicit PngReading(const EncodedPicture& file) : data(file.data), left(file.size) {}
  ~PngReading() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void stop_png(png_structp png, png_const_charp message) {
  auto* reading = static_cast<PngReading*>(png_get_error_ptr(png));
  std::strncpy(reading->message, message, sizeof reading->message - 1);
  std::longjmp(reading->jump, 1);
}

void ignore_warning(png_structp, png_const_charp) {}

void read_png_bytes(png_structp png, png_bytep to, size_t bytes) {
  auto* reading = static_cast<PngReading*>(png_get_io_ptr(png));
  if (bytes > reading->left) png_error(png, "it is cut off");
  std::memcpy(to, reading->data, bytes);
  reading->data += bytes;
  reading->left -= bytes;
}

// Reads the header and says how rows are to be converted. False: `message` says why not.
bool read_png_header(PngReading* reading, bool as_mask) {
  if (setjmp(reading->jump) != 0) return false;
  png_set_read_fn(reading->png, reading, read_png_bytes);
  png_read_info(reading->png, reading->info);
  const int colour = png_get_color_type(reading->png, reading->info);
  if (as_mask) {
    if (colour != PNG_COLOR_TYPE_PALETTE && colour != PNG_COLOR_TYPE_GRAY) {
      png_error(reading->png, "it has colours; a mask is a palette or grey PNG whose values are the classes");
    }
    png_set_packing(reading->png);
  } else {
    if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(reading->png);
    if (colour == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(reading->png);
    png_set_scale_16(reading->png);
    png_set_strip_alpha(reading->png);
  }
  png_set_interlace_handling(reading->png);
  return true;
}

bool start_png_rows(PngReading* reading) {
  if (setjmp(reading->jump) != 0) return false;
  png_read_update_info(reading->png, reading->info);
  return true;
}

bool read_png_rows(PngReading* reading, png_bytepp rows) {
  if (setjmp(reading->jump) != 0) return false;
  png_read_image(reading->png, rows);
  png_read_end(reading->png, nullptr);
  return true;
}

Picture with_high_bytes(const Picture& low) {
  Picture mask(low.height, low.width, kMaskChannels);
  for (size_t i = 0; i < low.bytes.size(); ++i) mask.bytes[2 * i + 1] = low.bytes[i];
  return mask;
}

}  // namespace

Picture decode_png(const EncodedPicture& file, bool as_mask) {
  PngReading reading(file);
  reading.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reading, stop_png, ignore_warning);
  reading.info = reading.png ? png_create_info_struct(reading.png) : nullptr;
  if (!reading.info) fail_as(ErrorCode::kMemory, "not enough memory to read ", file.path);
  if (!read_png_header(&reading, as_mask)) fail_picture(file, reading.message);
  const auto width = png_get_image_width(reading.png, reading.info);
  const auto height = png_get_image_height(reading.png, reading.info);
  check_picture_size(file, width, height);
  if (!start_png_rows(&reading)) fail_picture(file, reading.message);
  const int depth = png_get_bit_depth(reading.png, reading.info);
  const int channels = png_get_channels(reading.png, reading.info) * (depth == 16 ? 2 : 1);
  Picture picture(static_cast<int>(height), static_cast<int>(width), channels);
  if (png_get_rowbytes(reading.png, reading.info) * height != picture.bytes.size()) {
    fail_picture(file, "its rows have an unexpected size");
  }
  std::vector<png_bytep> rows;
  for (int y = 0; y < picture.height; ++y) rows.push_back(picture.at(y, 0));
  if (!read_png_rows(&reading, rows.data())) fail_picture(file, reading.message);
  return as_mask && channels == 1 ? with_high_bytes(picture) : picture;
}

}  // namespace onnx_train
