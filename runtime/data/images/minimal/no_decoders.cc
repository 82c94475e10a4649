// In the place of decoders/, in a build with ONNX_TRAIN_MINIMAL.
#include "onnx_passes/ir/error.h"
#include "runtime/data/images/decode.h"

namespace onnx_train {
namespace {

constexpr const char* kNoPictures = "this build has no pictures: it was made with ONNX_TRAIN_MINIMAL";

}  // namespace

void expect_decoders(const std::string& path) { fail_as(ErrorCode::kUsage, path, ": ", kNoPictures); }

Picture decode_png(const EncodedPicture& file, bool) { fail_picture(file, kNoPictures); }
Picture decode_jpeg(const EncodedPicture& file) { fail_picture(file, kNoPictures); }
Picture decode_webp(const EncodedPicture& file) { fail_picture(file, kNoPictures); }

}  // namespace onnx_train
