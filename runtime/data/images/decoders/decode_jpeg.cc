// JPEG by libjpeg-turbo. Its errors jump: between setjmp and the end of a function no object with a destructor is made.
#include <csetjmp>
#include <cstdio>

#include <jpeglib.h>

#include <jerror.h>

#include "onnx_passes/ir/error.h"
#include "runtime/data/images/decode.h"

namespace onnx_train {
namespace {

struct JpegReading {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  char message[JMSG_LENGTH_MAX] = "";
  std::jmp_buf jump;

  ~JpegReading() { jpeg_destroy_decompress(&jpeg); }
};

[[noreturn]] void stop_jpeg(j_common_ptr jpeg) {
  auto* reading = static_cast<JpegReading*>(jpeg->client_data);
  jpeg->err->format_message(jpeg, reading->message);
  std::longjmp(reading->jump, 1);
}

// libjpeg fills the rest of a damaged file with grey, and warns.
void judge_warning(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  const int code = jpeg->err->msg_code;
  if (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE || code == JWRN_ARITH_BAD_CODE) {
    stop_jpeg(jpeg);
  }
}

constexpr int kMostScans = 100;  // a progressive file of some kilobytes may have thousands, each as slow as the first

bool read_jpeg_header(JpegReading* reading, const EncodedPicture& file) {
  if (setjmp(reading->jump) != 0) return false;
  jpeg_create_decompress(&reading->jpeg);
  reading->jpeg.client_data = reading;
  jpeg_mem_src(&reading->jpeg, file.data, file.size);
  jpeg_read_header(&reading->jpeg, TRUE);
  const J_COLOR_SPACE stored = reading->jpeg.jpeg_color_space;
  const bool is_cmyk = stored == JCS_CMYK || stored == JCS_YCCK;
  reading->jpeg.out_color_space = is_cmyk ? JCS_CMYK : stored == JCS_GRAYSCALE ? JCS_GRAYSCALE : JCS_RGB;
  return true;
}

void limit_scans(j_common_ptr jpeg) {
  auto* reading = static_cast<JpegReading*>(jpeg->client_data);
  if (reading->jpeg.input_scan_number <= kMostScans) return;
  std::snprintf(reading->message, sizeof reading->message, "it has more than %d scans", kMostScans);
  std::longjmp(reading->jump, 1);
}

bool read_jpeg_rows(JpegReading* reading, uint8_t* to, size_t row_bytes) {
  if (setjmp(reading->jump) != 0) return false;
  jpeg_progress_mgr progress{};
  progress.progress_monitor = limit_scans;
  reading->jpeg.progress = &progress;
  jpeg_start_decompress(&reading->jpeg);
  while (reading->jpeg.output_scanline < reading->jpeg.output_height) {
    JSAMPROW row = to + reading->jpeg.output_scanline * row_bytes;
    jpeg_read_scanlines(&reading->jpeg, &row, 1);
  }
  jpeg_finish_decompress(&reading->jpeg);
  return true;
}

// Files in CMYK are inverted, as Adobe's programs write them: 255 is no ink. Pillow assumes the same.
Picture cmyk_to_rgb(const Picture& cmyk) {
  Picture rgb(cmyk.height, cmyk.width, 3);
  for (size_t i = 0; i < rgb.bytes.size(); ++i) {
    const uint8_t* from = cmyk.bytes.data() + 4 * (i / 3);
    rgb.bytes[i] = static_cast<uint8_t>((from[i % 3] * from[3] + 127) / 255);
  }
  return rgb;
}

}  // namespace

Picture decode_jpeg(const EncodedPicture& file) {
  JpegReading reading;
  reading.jpeg.err = jpeg_std_error(&reading.errors);
  reading.errors.error_exit = stop_jpeg;
  reading.errors.emit_message = judge_warning;
  reading.jpeg.client_data = &reading;
  if (!read_jpeg_header(&reading, file)) fail_picture(file, reading.message);
  check_picture_size(file, reading.jpeg.image_width, reading.jpeg.image_height);
  const int channels = reading.jpeg.out_color_space == JCS_CMYK ? 4 : reading.jpeg.out_color_space == JCS_RGB ? 3 : 1;
  Picture picture(static_cast<int>(reading.jpeg.image_height), static_cast<int>(reading.jpeg.image_width), channels);
  const size_t row_bytes = static_cast<size_t>(picture.width) * static_cast<size_t>(channels);
  if (!read_jpeg_rows(&reading, picture.bytes.data(), row_bytes)) fail_picture(file, reading.message);
  return channels == 4 ? cmyk_to_rgb(picture) : picture;
}

}  // namespace onnx_train
