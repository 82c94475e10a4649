// Gathers of rows of many tables in one node (kernels/lowering/fusion/merge_lookups.cc). Pure functions; any thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

// y[p, :] = table[indices[p], :], where table, indices and y are operands of the node.
struct TableLookup {
  int table, indices, output;  // positions among the inputs and outputs
  int64_t rows;                // rows of the table
  int64_t count;               // number of indices
};

struct TableLookups {
  std::vector<TableLookup> all;  // empty if the node is not a call of such Gathers
  int64_t row = 0;               // elements of a row; equal for all tables

  // Explains a fault in an input that holds indices.
  std::function<std::string(const Fault&)> explain() const;
};

// All tables share an element type, as do all indices and all results.
TableLookups table_lookups(const NodeSpec& spec);

}  // namespace onnx_train
