// Queries about values that are seen as rows of their last axis. Pure functions.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Whether `bias` is one row, of the type of `sums`, that an Add adds to each row of `sums`.
inline bool is_row_of(const Value& bias, const Value& sums) {
  if (!bias.type().is_static() || !sums.has_rank() || sums.rank() < 2 || bias.dtype() != sums.dtype()) return false;
  const Shape row = bias.type().shape();
  const Dim& columns = sums.type().dims->back();
  return !row.empty() && static_cast<int64_t>(row.size()) <= sums.rank() && num_elements(row) == row.back() &&
         columns.known() && columns.value() == row.back();
}

}  // namespace onnx_train
