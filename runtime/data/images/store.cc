#include "runtime/data/images/store.h"

#include <algorithm>
#include <filesystem>

#include "onnx_passes/ir/error.h"
#include "runtime/data/images/damaged.h"
#include "runtime/data/images/decode.h"
#include "runtime/support/fingerprint.h"

namespace onnx_train {
namespace {

class FileStore : public PictureStore {
 public:
  explicit FileStore(std::shared_ptr<const PictureFiles> files) : files_(std::move(files)) {}

  int64_t size() const override { return static_cast<int64_t>(files_->files.size()); }
  Picture read(int64_t sample, bool is_mask) const override {
    try {
      return is_mask ? read_mask_of(*files_, static_cast<size_t>(sample)) : decode_picture(describe(sample, false));
    } catch (const Error& error) {
      if (error.kind() != ErrorCode::kFile) throw;
      fail_as(error.code(), error.what(), kBadPictureHint);
    }
  }
  std::string describe(int64_t sample, bool is_mask) const override {
    if (is_mask && files_->boxes) return concat(files_->boxes->path, ": images[", sample, "]");
    return files_->folder + (is_mask ? files_->masks : files_->files)[static_cast<size_t>(sample)];
  }
  // Names, sizes, labels and boxes. A folder may be moved.
  std::string identity() const override {
    std::string text;
    std::error_code error;
    for (size_t i = 0; i < files_->files.size(); ++i) {
      const auto add = [&](const std::string& name) {
        text +=
            concat(name, '\0', static_cast<int64_t>(std::filesystem::file_size(files_->folder + name, error)), '\0');
      };
      add(files_->files[i]);
      if (!files_->masks.empty()) add(files_->masks[i]);
      if (!files_->labels.empty()) text += concat(files_->labels[i], '\n');
      if (!files_->boxes) continue;
      for (const LabelledBox& box : files_->boxes->boxes[i])
        text.append(reinterpret_cast<const char*>(&box), sizeof box);
    }
    return text;
  }
  // Files of pictures are rarely smaller than a 32nd of the pixels.
  size_t most_bytes() const override {
    constexpr size_t kMostCompression = 32;
    size_t bytes = 0;
    for (const auto* names : {&files_->files, &files_->masks}) {
      for (const std::string& name : *names) {
        std::error_code error;
        const auto size = std::filesystem::file_size(files_->folder + name, error);
        if (!error) bytes += kMostCompression * size;
      }
    }
    return std::max<size_t>(bytes, 1);
  }

 private:
  const std::shared_ptr<const PictureFiles> files_;
};

// An array of bytes, [N, H, W], [N, C, H, W] or [N, H, W, C].
class ArrayStore : public PictureStore {
 public:
  explicit ArrayStore(const std::string& input, Tensor array) : input_(input), array_(std::move(array)) {
    const Shape& shape = array_.shape();
    const auto is_channels = [](int64_t size) { return size == 1 || size == 3; };
    is_chw_ = shape.size() == 4 && is_channels(shape[1]);
    const bool is_hwc = shape.size() == 4 && !is_chw_ && is_channels(shape[3]);
    if (shape.size() != 3 && !is_chw_ && !is_hwc) {
      fail_as(ErrorCode::kData, "data '", input, "': the data holds uint8", to_string(shape),
              ", which are no pictures of 1 or 3 channels");
    }
    channels_ = shape.size() == 3 ? 1 : static_cast<int>(is_chw_ ? shape[1] : shape[3]);
    height_ = static_cast<int>(is_chw_ ? shape[2] : shape[1]);
    width_ = static_cast<int>(is_chw_ ? shape[3] : shape[2]);
    if (height_ < 1 || width_ < 1) fail_as(ErrorCode::kData, "data '", input, "': pictures without pixels");
  }

  int64_t size() const override { return array_.shape()[0]; }
  Picture read(int64_t sample, bool) const override {
    Picture picture(height_, width_, channels_);
    const size_t bytes = picture.bytes.size(), plane = bytes / static_cast<size_t>(channels_);
    const uint8_t* from = array_.data<uint8_t>() + static_cast<size_t>(sample) * bytes;
    for (size_t i = 0; i < bytes; ++i) {
      picture.bytes[i] =
          is_chw_ ? from[i % static_cast<size_t>(channels_) * plane + i / static_cast<size_t>(channels_)] : from[i];
    }
    return picture;
  }
  std::string describe(int64_t sample, bool) const override { return concat("sample ", sample, " of '", input_, "'"); }
  std::string identity() const override { return fingerprint({{input_, array_}}); }
  size_t most_bytes() const override { return 0; }

 private:
  std::string input_;
  Tensor array_;
  int height_, width_, channels_;
  bool is_chw_;
};

}  // namespace

Picture read_mask_of(const PictureFiles& files, size_t sample) {
  const std::string path = files.folder + files.files[sample];
  if (!files.boxes) return turned_with(path, decode_mask(files.folder + files.masks[sample]));
  const auto [height, width] = files.boxes->sizes[sample];  // of boxes the size is enough
  return turned_with(path, Picture(height, width, 0));
}

std::unique_ptr<const PictureStore> file_store(std::shared_ptr<const PictureFiles> files) {
  return std::make_unique<FileStore>(std::move(files));
}

std::unique_ptr<const PictureStore> array_store(const std::string& input, const Tensor& array) {
  return std::make_unique<ArrayStore>(input, array);
}

}  // namespace onnx_train
