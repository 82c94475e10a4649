// A model's message in pieces, for writing contents of tensors that the message itself does not hold.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

// Bytes of the message, and the initializer whose contents come next; "" when none do.
struct MessagePiece {
  std::string bytes;
  std::string tensor;
};

// `proto` serialized, with room in its lengths for the raw data of the initializers that lack_contents, in the graph
// and in the algorithms. Written one after the other, each followed by its tensor's bytes, the pieces are a ModelProto.
std::vector<MessagePiece> cut_at_missing_tensors(const onnx::ModelProto& proto);

}  // namespace onnx_train
