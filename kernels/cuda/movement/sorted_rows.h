// Adds rows to the rows of a tensor that keys select; several keys may be equal. Used by the gradient of an embedding,
// ScatterND and ScatterElements. The keys are sorted first (sort.h) and the sorted rows cut into tiles. A thread
// combines the rows of a tile for its columns, in order. Rows to which other tiles add become partial results, which a
// second kernel joins. No result depends on the order in which threads run.
//
// A plain value that describes the work; any thread may enqueue it.
#pragma once

#include <string>

#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/sort.h"

namespace onnx_train::cuda {

enum class Reduction { kNone, kAdd, kMul, kMax, kMin };
Reduction reduction_named(const std::string& name);

// to[o, keys[p], :] = combine(to[o, keys[p], :], from[o, p, :])
struct RowScatter {
  int64_t outer;  // parts of both tensors, stored one after the other
  int64_t count;  // keys: rows in a part of `from`
  int64_t size;   // rows in a part of `to`
  int64_t inner;  // elements of a row
};

class SortedRows {
 public:
  // `dtype` is the element type; without a reduction the last of several equal keys wins. `is_clear`: `to` holds zeros.
  SortedRows(const RowScatter& rows, DType dtype, Reduction reduction, bool is_clear = false);

  // Bytes of workspace besides the keys; run() needs it aligned to 16 bytes.
  size_t workspace() const;
  // `keys` is overwritten. Does nothing if the guard's fault is set.
  void run(const Launch& launch, int64_t* keys, void* workspace, const void* from, void* to, const Fault* guard) const;

 private:
  RowScatter rows_;
  DType dtype_;
  Reduction reduction_;
  bool is_clear_;
  Sort sort_;
};

// Sums the rows of equal keys: rows[p] is the sum if p is the first position of its key, else zeros; `rows` may be
// `from`. Elements are float or double.
class CoalescedRows {
 public:
  // Keys are below `end`.
  CoalescedRows(int64_t count, int64_t end, int64_t inner, DType dtype);

  size_t workspace() const;
  // `keys` is overwritten. places[p] is the key, minus *size if p is not its first position.
  void run(const Launch& launch, int64_t* keys, void* workspace, const void* from, void* rows, int64_t* places,
           const int64_t* size, const Fault* guard) const;

 private:
  RowScatter rows_;
  DType dtype_;
  Sort sort_;
};

}  // namespace onnx_train::cuda
