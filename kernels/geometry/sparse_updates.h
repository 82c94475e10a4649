// CoalesceRows, SparseSgd and SparseAdamRows (bodies: kernels/functions/embeddings.cc), and SparseAdam, which updates
// the rows of a whole gradient, for the kernels of every device. Pure functions; any thread. They throw Error that
// names the node if shapes do not fit.
#pragma once

#include <functional>
#include <string>

#include "kernels/kernel.h"
#include "kernels/math/updates.h"

namespace onnx_train {

// The rows of a table that places select.
struct PlacedRows {
  int64_t count;    // number of places
  int64_t columns;  // elements of a row
  int64_t size;     // rows of the table; 0 if known only to the run
};

PlacedRows coalesced_rows(const NodeSpec& spec);
PlacedRows sparsely_updated_rows(const NodeSpec& spec);

// Whether the inputs and outputs of CoalesceRows have supported types, except dy and the rows.
bool has_places(const NodeSpec& spec);
bool supports_sparse_sgd(const NodeSpec& spec);

// Inputs of SparseAdam (w, g, exp_avg, exp_avg_sq, step, learning_rate, grad_scale) and of SparseAdamRows, which has
// places after the rows of the gradient. Slots follow each other, and so do the scalars.
struct SparseAdamInputs {
  bool has_places;
  int slots, scalars;
};
SparseAdamInputs sparse_adam_inputs(const NodeSpec& spec);
PlacedRows sparse_adam_rows(const NodeSpec& spec);
math::UpdateParameters sparse_adam_parameters(const NodeSpec& spec);
bool supports_sparse_adam(const NodeSpec& spec);

std::string explain_table_index(const Fault& fault);

}  // namespace onnx_train
