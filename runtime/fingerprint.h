// Identity of a model and of data: 16 hexadecimal digits (64 bits of XXH3) that differ where names, types, shapes or
// contents do. Time is bounded: of a tensor larger than `kSampledBytes`, that many bytes are read, in blocks of 64 KiB
// at equal distances, first and last included; a difference between the blocks is then not seen. Pure functions; any
// thread; nothing is thrown but what reading a model's tensors throws.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

constexpr size_t kSampledDataBytes = size_t{256} << 20;  // of an array of data
constexpr size_t kSampledWeightBytes = size_t{1} << 20;  // of an initializer

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// In the order given.
std::string fingerprint(const std::vector<NamedTensor>& tensors, size_t sampled_bytes = kSampledDataBytes);

// All graphs of the model, what it was built with (loss, optimizer, ...) and its initializers, wherever they are
// stored. A checkpoint's position and checksum are no part of it.
std::string fingerprint(const Model& model);

}  // namespace onnx_train
