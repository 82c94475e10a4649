// Optimizer nodes in a plan: when each weight is updated, and how many nodes that takes. Passes; they run on the thread
// that builds the plan.
#pragma once

#include <functional>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Whether the node is Sgd, Adam or AdamW (a new weight and new slots, from inputs 0 and 2.. and the gradient, input 1)
// or SparseSgd (a new weight, from input 0 and the rows of its gradient, input 1).
bool is_update(const Node& node);

// If every use of a table is a lookup, plain SGD updates only the rows that were looked up, and no gradient of the size
// of the table exists. See sparse_updates.cc for the exceptions.
bool sparse_updates(Model& model);

// Updates a weight as soon as its gradient is computed and all readers of the old weight have run, so that not all
// gradients are alive at once. Not applied if the norm of all gradients decides about the update (clipping, loss
// scaling); a norm that is only reported becomes the norm of the large gradients' norms and the small gradients. Every
// update stays after all nodes that `may_reject` their data (device.h), so that a step that fails does not change the
// state. Gradients of fewer than `least_bytes` stay: for those a node of its own costs the device more than their
// memory is worth.
bool update_early(Model& model, const std::function<bool(const Node&)>& may_reject, size_t least_bytes);

// Merges updates that are adjacent into one call of a function Updates (a multi-tensor update). See merge_updates.cc
// for the exceptions.
bool merge_updates(Model& model);

}  // namespace onnx_train
