// Parses serialized models without copying the weights. Pure; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

// Raw data of an initializer that were not copied: `bytes` bytes at `data`, inside the input. The tensor is part of the
// message and valid while the message is not changed.
struct RawData {
  onnx::TensorProto* tensor;
  const void* data;
  size_t bytes;
};

// Parses the bytes as a ModelProto. Raw data of initializers (also in training graphs and subgraphs) of at least
// kMinBytesBeside bytes are not copied into the message but listed in `left_out`. Messages may be nested at most
// `max_depth` deep. Returns false if the bytes are not such a message.
bool read_message(std::span<const unsigned char> bytes, int max_depth, onnx::ModelProto* proto,
                  std::vector<RawData>* left_out);

}  // namespace onnx_train
