// Where the pictures of samples come from: files, or an array of bytes. The caller owns a store; any thread may read
// one. Functions throw Error that names the file or the input.
#pragma once

#include <memory>
#include <string>

#include "onnx_passes/ir/tensor.h"
#include "runtime/data/images/files.h"
#include "runtime/data/images/picture.h"

namespace onnx_train {

class PictureStore {
 public:
  virtual ~PictureStore() = default;
  virtual int64_t size() const = 0;
  // The picture, or its mask. Of samples with boxes the mask has no channels: its size is that of the boxes' file.
  virtual Picture read(int64_t sample, bool is_mask) const = 0;
  virtual std::string describe(int64_t sample, bool is_mask) const = 0;
  virtual std::string identity() const = 0;
  // Of pictures that are slow to read, and are kept: what they take at most, as far as is known before they are read.
  // 0: reading them is quick.
  virtual size_t most_bytes() const = 0;
};

// The mask of a sample, or the picture without channels that its boxes have, as its picture is shown.
Picture read_mask_of(const PictureFiles& files, size_t sample);

std::unique_ptr<const PictureStore> file_store(std::shared_ptr<const PictureFiles> files);
// Pictures of 1 or 3 channels: uint8[N, H, W], [N, C, H, W] or [N, H, W, C]. `input` names it in errors.
std::unique_ptr<const PictureStore> array_store(const std::string& input, const Tensor& array);

}  // namespace onnx_train
