// The optimizer's nodes in a plan: when each weight is updated, and how many nodes that takes.
#pragma once

#include <functional>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Sgd, Adam, AdamW: a new weight and new slots, from their inputs 0 and 2.. and the gradient, input 1. SparseSgd: a new
// weight, from input 0 and the rows of its gradient, input 1.
bool is_update(const Node& node);

// Of a table whose every use is a lookup, plain SGD updates the rows that were looked up alone, and no gradient as
// large as the table exists; see sparse_updates.cc for the tables that stay out.
bool sparse_updates(Model& model);

// A weight is updated as soon as its gradient is there and nobody reads the old weight any more, so that not all
// gradients are alive at once; not where the norm of all gradients decides about the update (clipping, loss scaling).
// The norm that is only reported becomes the norm of the large gradients' norms and the small gradients. Every update
// stays behind all nodes that `may_refuse` their data (device.h), so that a step that fails leaves the state as it was.
bool update_early(Model& model, const std::function<bool(const Node&)>& may_refuse);

// Updates that stand together become one call of a function Updates; see merge_updates.cc for those that stay out.
bool merge_updates(Model& model);

}  // namespace onnx_train
