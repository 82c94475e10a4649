// Traversal of the tensors in a model's message. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <functional>

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

// Receives a tensor, and whether it is an initializer of a graph that a Model represents.
using TensorVisitor = std::function<void(onnx::TensorProto* tensor, bool is_initializer)>;

// Visits every tensor of the model: initializers and attributes, also in subgraphs, functions and training graphs.
void for_each_tensor(onnx::ModelProto* model, const TensorVisitor& f);

// The size in bytes that follows from the tensor's dimensions and element type. Throws Error for a negative dimension,
// a product that overflows, or a type that ONNX does not define; 0 for strings, which have no fixed size.
size_t declared_bytes(const onnx::TensorProto& tensor);

}  // namespace onnx_train
