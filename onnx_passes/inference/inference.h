// Type and shape inference, node by node, with ONNX's inference functions applied to the IR. Contents of integer
// tensors (shapes, axes) are propagated through Constant, Shape, Gather, Concat, ... so that symbols such as "batch"
// survive a Reshape. One thread at a time may use a graph.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Infers the types of the node's outputs, and the contents of small integer outputs, from its inputs. Calls of the
// model's functions are inferred through their bodies. Known types are kept where inference gives nothing, and refined
// where it gives more. Throws Error that names the node if its inputs or attributes are invalid.
void infer_types(Node* node);
void infer_types(Graph* graph);  // all nodes in order, including subgraphs

// Forgets all that is known of the node's outputs but their element types: what inference gives is then of its inputs
// alone.
void forget_shapes(Node* node);

// The contents of a constant value: an initializer that no entry point updates, a Constant node's output, or a tensor
// with known elements; empty for other values. Ignores the defaults of graph inputs.
Tensor constant_of(const Value* value);

// Whether the node's operator is in ONNX's schemas for the model's opset, or is a function of the model.
bool is_known_operator(const Node& node);

}  // namespace onnx_train
