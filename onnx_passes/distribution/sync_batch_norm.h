// Batch normalization over the batches of all ranks that have one, as one batch (as PyTorch's SyncBatchNorm). A
// function on a flattened entry point that one caller owns; throws Error.
#pragma once

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {

// `active` is the number of ranks that have a batch. Returns the statistics, which are the same on all ranks.
//
// With n_r elements in a channel of rank r's batch, their mean m_r and variance v_r (Chan et al. 1983):
//   n = Σ n_r,  mean = Σ n_r m_r / n,  var = Σ n_r (v_r + (m_r - mean)²) / n,
// and with the gradient's sums over all ranks, Σ dy and Σ dy x̂:
//   dx = (dy - Σ dy / n - x̂ Σ dy x̂ / n) scale / sqrt(var + epsilon).
Marks<Value> synchronize_batch_norm(Graph* graph, Value* active, int ranks);

}  // namespace onnx_train
