// Serializes a model's message in pieces, so that contents stored outside the message can be written between them.
// Pure; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/ir/protobuf.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// Bytes of the message, and the element of its contents that follows; nothing if none follows.
struct MessagePiece {
  std::string bytes;
  std::optional<size_t> reference;
  size_t fields = 0;    // of `bytes`, those at the end that are fields of the tensor of the contents
  size_t contents = 0;  // bytes of them
};

// Serializes `proto`, counting in its lengths the raw data of the tensors that refer to contents (message.h):
// initializers of graphs and subgraphs. The pieces in order, each followed by the contents it names, are a ModelProto.
// In a file of it all contents are aligned to kAlignment, so that a mapped file is read in place.
std::vector<MessagePiece> cut_at_references(const onnx::ModelProto& proto);

}  // namespace onnx_train
