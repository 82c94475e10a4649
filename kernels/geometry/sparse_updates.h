// CoalesceRows and SparseSgd (bodies: kernels/functions/embeddings.cc), for the kernels of every device. Pure
// functions; any thread. They throw Error that names the node when shapes do not fit.
#pragma once

#include <functional>
#include <string>

#include "kernels/kernel.h"

namespace onnx_train {

// Rows of a table that places name.
struct PlacedRows {
  int64_t count;    // of places
  int64_t columns;  // elements of a row
  int64_t size;     // rows of the table; 0 if only the run knows
};

PlacedRows coalesced_rows(const NodeSpec& spec);
PlacedRows sparsely_updated_rows(const NodeSpec& spec);

// Whether the inputs and outputs of CoalesceRows have supported types, except dy and the rows.
bool has_places(const NodeSpec& spec);
bool supports_sparse_sgd(const NodeSpec& spec);

std::string explain_table_index(const Fault& fault);

}  // namespace onnx_train
