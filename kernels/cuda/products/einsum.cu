#include "kernels/geometry/einsum.h"

#include "kernels/cuda/products/products.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/dispatch.h"

namespace onnx_train::cuda {
namespace {

// Computes one result per thread: the sum of `count` elements.
template <typename T>
__global__ void arrange(int64_t results, Indexing<1> kept, int64_t count, Indexing<1> reduced, const T* from, T* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= results) return;
  int64_t first[1] = {};
  kept.add_offsets(i, first);
  T sum = 0;
  for (int64_t r = 0; r < count; ++r) {
    int64_t at[1] = {first[0]};
    reduced.add_offsets(r, at);
    sum = static_cast<T>(sum + from[at[0]]);
  }
  to[i] = sum;
}

struct Box {
  std::vector<IndexedAxis<1>> axes;
  int64_t count = 1;

  // Drops axes of one element.
  explicit Box(const std::vector<Arrangement::Axis>& of) {
    for (const Arrangement::Axis& axis : of) {
      count *= axis.size;
      if (axis.size > 1) axes.push_back({axis.size, {axis.stride}});
    }
  }
};

Arrange prepare_arrangement(DType dtype, const Arrangement& arrangement) {
  const Box kept(arrangement.kept), reduced(arrangement.reduced);
  if (kept.count == 0) return [](const Launch&, const void*, void*) {};
  return dispatch_numeric(dtype, [&]<typename T>(T) -> Arrange {
    return [results = kept.count, count = reduced.count, kept = Indexing<1>(kept.axes),
            reduced = Indexing<1>(reduced.axes)](const Launch& launch, const void* from, void* to) {
      enqueue_each(launch, "arrange", arrange<T>, results, kept, count, reduced, static_cast<const T*>(from),
                   static_cast<T*>(to));
    };
  });
}

Prepared multiply(const NodeSpec& spec, const Product& product) { return prepare_product(spec, product); }

}  // namespace

Prepared prepare_einsum(const NodeSpec& spec) { return prepare_einsum(spec, prepare_arrangement, multiply); }

}  // namespace onnx_train::cuda
