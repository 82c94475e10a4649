// A model's message in pieces, for writing contents of tensors that the message itself does not hold.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

// Bytes of the message, and the element of its contents that comes next; nothing when none does.
struct MessagePiece {
  std::string bytes;
  std::optional<size_t> reference;
};

// `proto` serialized, with room in its lengths for the raw data of the tensors that refer to contents (message.h):
// initializers of graphs and subgraphs. Written one after the other, each followed by the contents it refers to, the
// pieces are a ModelProto.
std::vector<MessagePiece> cut_at_references(const onnx::ModelProto& proto);

}  // namespace onnx_train
