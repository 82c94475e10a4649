// Identity of a model and of data: 16 hexadecimal digits (64 bits of XXH3) that differ when names, types, shapes or
// contents differ. The time is bounded: of a tensor larger than `sampled_bytes`, only that many bytes are read, in
// blocks of 64 KiB at equal distances including the first and the last; differences between the blocks are not
// detected. Pure functions; any thread. They throw only what reading a model's tensors throws.
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

// In the given order.
std::string fingerprint(const std::vector<NamedTensor>& tensors, size_t sampled_bytes = kSampledDataBytes);

// Covers all graphs of the model, its build settings (loss, optimizer, ...) and its initializers, wherever they are
// stored, but not the position and checksum of a checkpoint.
std::string fingerprint(const Model& model);

}  // namespace onnx_train
