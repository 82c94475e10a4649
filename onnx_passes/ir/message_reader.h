// Parsing of serialized models that reads the graph and leaves the weights where they are.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

// Raw data of an initializer that stayed where they were: `bytes` bytes at `data`, inside what was read. The tensor is
// a part of the message, and lives as long as that one is not changed.
struct RawData {
  onnx::TensorProto* tensor;
  const void* data;
  size_t bytes;
};

// Parses the bytes as a ModelProto. Raw data of at least kMinBytesBeside bytes are not copied into the message but
// listed in `left_out`: they are those of initializers, in training graphs and subgraphs too. No message may be nested
// in more than `max_depth` others. False when the bytes are no such message.
bool read_message(std::span<const unsigned char> bytes, int max_depth, onnx::ModelProto* proto,
                  std::vector<RawData>* left_out);

}  // namespace onnx_train
