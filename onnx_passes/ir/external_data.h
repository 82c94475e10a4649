// Tensors whose data lie in files beside the model. Reading follows the rules of loading.h.
#pragma once

#include <functional>
#include <string>

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

// Every tensor of the model: initializers and attributes, in subgraphs, functions and training graphs too.
void for_each_tensor(onnx::ModelProto* model, const std::function<void(onnx::TensorProto*)>& f);

// Bytes that the tensor's dimensions and element type ask for. Throws Error on a negative dimension, a product that
// does not fit, or a type that ONNX does not define; strings have no size and give 0.
size_t declared_bytes(const onnx::TensorProto& tensor);

// True for a tensor that has a size but no data at all: its message was made without contents.
bool lacks_contents(const onnx::TensorProto& tensor);

// Moves the data of all external tensors into the message. `folder` is the model file's.
void read_external_data(onnx::ModelProto* model, const std::string& folder);

}  // namespace onnx_train
