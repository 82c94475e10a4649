// Type and shape inference, node by node, with ONNX's own inference functions over our IR. Integer contents (shapes,
// axes) are followed through Constant, Shape, Gather, Concat, ... so that symbols such as "batch" survive a Reshape.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Sets the types of the node's outputs, and the contents of small integer ones, from its inputs. A function of the
// model is inferred through its body. Types already known are kept where inference says nothing, and made more
// precise where it knows more. Throws Error that names the node when its inputs or attributes are invalid.
void infer_types(Node* node);
void infer_types(Graph* graph);  // all nodes in order, subgraphs included

// The contents of a constant value: an initializer that no entry point updates, a Constant node's output, or a
// tensor whose elements inference knows. Empty when it is none. Does not look into graph inputs with defaults.
Tensor constant_of(const Value* value);

// The node's operator is in ONNX's schemas for the model's opset, or a function of the model.
bool is_known_operator(const Node& node);

}  // namespace onnx_train
