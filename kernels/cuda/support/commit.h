// The copies at the end of a run, as one kernel per 64 of them.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "kernels/device.h"

namespace onnx_train::cuda {

// Enqueues the copies; they do nothing if the fault is set when they run. Sizes and addresses need no alignment.
void enqueue_commit(const std::vector<Transfer>& transfers, const Fault* fault, cudaStream_t stream);

}  // namespace onnx_train::cuda
