// Serializes a model's message in pieces, so that contents stored outside the message can be written between them.
// Pure; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

// Bytes of the message, and the element of its contents that follows; nothing if none follows.
struct MessagePiece {
  std::string bytes;
  std::optional<size_t> reference;
};

// Serializes `proto`, counting in its lengths the raw data of the tensors that refer to contents (message.h):
// initializers of graphs and subgraphs. The pieces in order, each followed by the contents it names, are a ModelProto.
std::vector<MessagePiece> cut_at_references(const onnx::ModelProto& proto);

}  // namespace onnx_train
