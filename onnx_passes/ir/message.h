// A model's message with its large tensors stored beside it: each such tensor refers to an element of `contents`.
// Messages are therefore small for any model; parsing, inlining and serializing copy no weights. A plain value.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {

struct ModelMessage {
  onnx::ModelProto proto;
  std::vector<Tensor> contents;
};

// The element of `contents` that the tensor refers to; nothing if its data are in the message.
std::optional<size_t> reference_of(const onnx::TensorProto& tensor);
// Makes the tensor refer to element `index` and clears its own data.
void set_reference(size_t index, onnx::TensorProto* tensor);
// Sets the tensor's contents: large ones are added to those of `message`, small ones are copied into the tensor.
void put_beside(const Tensor& contents, ModelMessage* message, onnx::TensorProto* tensor);

// Converts a message to a Model and back. Contents are shared, not copied.
Model from_message(ModelMessage message);
ModelMessage to_message(const Model& model, bool all_types = false);

// Whether the tensor is of int4 or uint4. Its contents beside a message are its bytes, as uint8.
bool has_four_bits(const onnx::TensorProto& tensor);
// The bytes of such a tensor whose data are in the message.
Tensor packed_bytes(const onnx::TensorProto& tensor);

// Weights of a training model that the message has in 16 or 4 bits before a Cast, and whose names are in `names`,
// become initializers of their own type.
void widen_stored_weights(ModelMessage* message, const std::set<std::string>& names);

// The whole model in one message, with copies of all contents.
onnx::ModelProto with_contents(ModelMessage message);

}  // namespace onnx_train
