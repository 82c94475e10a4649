// MaxUnpool. If several elements have the same place, the last one stays, as on the CPU: each place first finds the
// largest number of an element, so results do not depend on the order of threads.
#include "kernels/cuda/pooling/pools.h"
#include "kernels/cuda/support/indices.h"
#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

using Number = unsigned long long;  // 1 + the number of an element of x; 0 is none

__global__ void find_last(int64_t count, int64_t places, const int64_t* indices, Number* last) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count && indices[i] >= 0 && indices[i] < places) atomicMax(&last[indices[i]], static_cast<Number>(i) + 1);
}

// y[element of place p] = the last element of x with place p, or 0. One thread per place.
template <typename T>
__global__ void fill_places(int64_t n, Indexing<1> elements, const Number* last, const T* x, T* y) {
  const int64_t p = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (p >= n) return;
  int64_t element[1] = {};
  elements.add_offsets(p, element);
  y[element[0]] = last[p] == 0 ? T{0} : x[last[p] - 1];
}

// Maps a place, an element of a tensor of `shape`, to an element of y; that tensor is the beginning of y on every axis.
Indexing<1> elements_of(const Shape& shape, const Shape& y) {
  std::vector<IndexedAxis<1>> axes;
  int64_t stride = 1;
  for (size_t k = y.size(); k-- > 0;) {
    axes.insert(axes.begin(), {shape[k], {stride}});
    stride *= y[k];
  }
  return Indexing<1>(axes);
}

}  // namespace

Prepared prepare_max_unpool(const NodeSpec& spec) {
  const Shape y = spec.out_shape(), shape = unpooled_shape(spec, y);
  const int64_t count = spec.in_size(), places = num_elements(shape);
  const bool whole = shape == y;
  const size_t bytes = static_cast<size_t>(spec.out_size()) * size_of(spec.out_type());
  Prepared prepared = dispatch_float(spec.in_type(), [&]<typename T>(T) -> Prepared {
    const auto run = [=, elements = places > 0 ? elements_of(shape, y) : Indexing<1>({})](const Launch& launch) {
      auto* last = launch.scratch<Number>();
      const auto* indices = launch.in<int64_t>(1);
      if (count > 0) {
        read_numbers(launch, {1, DType::kInt64, count}, 0, places, nullptr, launch.scratch<int64_t>() + places);
      }
      if (!whole || places == 0) set_bytes(launch, launch.outputs[0], 0, bytes);
      if (places == 0) return;
      set_bytes(launch, last, 0, static_cast<size_t>(places) * sizeof(Number));
      enqueue_each(launch, "find_last", find_last, count, places, indices, last);
      enqueue_each(launch, "fill_places", fill_places<T>, places, elements, last, launch.in<T>(0), launch.out<T>());
    };
    return {run, index_workspace(places)};
  });
  prepared.explain = [places](const Fault& fault) {
    return concat("index ", fault.value, " is outside of the ", places, " places of the output");
  };
  return prepared;
}

}  // namespace onnx_train::cuda
