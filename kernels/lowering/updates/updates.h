// Optimizer nodes in a plan: when each weight is updated, and by how many nodes. Passes on the plan builder's thread.
#pragma once

#include <functional>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Whether the node is an optimizer's update. Sgd, Adam, AdamW and SparseAdam compute a new weight and new slots from
// inputs 0 and 2.. and the gradient, input 1; SparseSgd and SparseAdamRows from the rows of a gradient, input 1, and
// their places, input 2. Updates without a kernel are bodies in a plan, which element-wise fusion takes.
bool is_update(const Node& node);

// If every use of a table is a lookup, makes plain SGD and SparseAdam update only the rows that were looked up, without
// a gradient of the table's size. See sparse_updates.cc for the exceptions.
bool sparse_updates(Model& model);

// Updates a weight as soon as its gradient is computed and all readers of the old weight have run, so that fewer
// gradients are alive at once. Has no effect if updates depend on the norm of all gradients (clipping, loss scaling); a
// norm that is only reported becomes the norm of the large gradients' norms and the small gradients. Every update stays
// after all nodes that `may_reject` their data (device.h), so that a failing step does not change the state. Gradients
// of fewer than `least_bytes` stay, because a separate node costs more than their memory is worth.
bool update_early(Model& model, const std::function<bool(const Node&)>& may_reject, size_t least_bytes);

// Merges adjacent updates into one call of a function Updates (multi-tensor update); exceptions: merge_updates.cc.
bool merge_updates(Model& model);

}  // namespace onnx_train
