// CoalesceRows and SparseSgd (bodies: kernels/functions/embeddings.cc), for the kernels of every device. Pure
// functions; any thread. They throw Error that names the node if shapes do not fit.
#pragma once

#include <functional>
#include <string>

#include "kernels/kernel.h"

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

std::string explain_table_index(const Fault& fault);

}  // namespace onnx_train
