// Copies the rows of one tensor that indices select to consecutive rows of another, during a run.
#pragma once

#include "kernels/cuda/support/launch.h"

namespace onnx_train::cuda {

// to[o, p, :] = from[o, rows[p], :]
struct RowCopy {
  int64_t outer;      // parts of both tensors, stored one after the other
  int64_t size;       // rows in a part of `from`
  int64_t count;      // rows in a part of `to`
  int64_t row_bytes;  // bytes of a row
};

void copy_rows(const Launch& launch, const RowCopy& copy, const int64_t* rows, const void* from, void* to);

}  // namespace onnx_train::cuda
