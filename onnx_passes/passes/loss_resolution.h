// Closes the open ends of a loss expression against the model, and refuses what does not fit: the prediction (the
// model's first float output), the class axis, the names of targets. Used by the loss pass, before any node is built;
// any thread.
//
// A target has the prediction's shape, without the class axis where it holds class indices. A name that the model does
// not have becomes an input of that type; a value of the model must have that shape already: nothing broadcasts, but
// for the weights of bce_with_logits. Sizes that only the data tells are compared when a plan is made (loss_terms.h).
//
// Targets that are left open are called `labels` where all of them have one type, else `labels_<prediction>` each; a
// number follows where a value inside the model has that name.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/passes/loss_terms.h"

namespace onnx_train {

// `text` is the whole expression, for messages. Throws Error that points at the column.
void resolve(std::vector<LossTerm>* terms, const Graph& graph, const std::string& text);

}  // namespace onnx_train
