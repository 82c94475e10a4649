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

using Contents = std::vector<Tensor>;

struct ModelMessage {
  onnx::ModelProto proto;
  Contents contents;
};

// The element of `contents` that the tensor refers to; nothing if its data are in the message.
std::optional<size_t> reference_of(const onnx::TensorProto& tensor);
// Makes the tensor refer to element `index` and clears its own data.
void set_reference(size_t index, onnx::TensorProto* tensor);
// The element that a tensor refers to. Throws Error where there is none.
const Tensor& referred(const Contents& contents, size_t index);
// Copies its data into the tensor.
void put_contents(const Tensor& data, onnx::TensorProto* tensor);
// The same for small data; large ones are added to `contents`.
void put_beside(const Tensor& data, Contents* contents, onnx::TensorProto* tensor);

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

using Properties = google::protobuf::RepeatedPtrField<onnx::StringStringEntryProto>;
// The value of the first pair with the key; null if there is none.
const std::string* find_property(const Properties& properties, const char* key);
void add_property(Properties* properties, std::string key, const std::string& value);
void remove_property(const char* key, Properties* properties);  // all pairs with the key

// The whole model in one message, with copies of all contents.
onnx::ModelProto with_contents(ModelMessage message);

}  // namespace onnx_train
