#include "kernels/geometry/einsum.h"

#include <algorithm>

#include "kernels/cpu/products/products.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/dispatch.h"

namespace onnx_train::cpu {
namespace {

// Returns the offsets of all elements of the box that `axes` span, in row-major order.
std::vector<int64_t> offsets_of(const std::vector<Arrangement::Axis>& axes) {
  std::vector<int64_t> offsets = {0};
  for (const Arrangement::Axis& axis : axes) {
    std::vector<int64_t> more;
    for (int64_t offset : offsets) {
      for (int64_t i = 0; i < axis.size; ++i) more.push_back(offset + i * axis.stride);
    }
    offsets = std::move(more);
  }
  return offsets;
}

template <typename T>
void arrange(const std::vector<Arrangement::Axis>& axes, const std::vector<int64_t>& reduced, const T* from, T* to) {
  int64_t count = 1;
  for (const Arrangement::Axis& axis : axes) count *= axis.size;
  const int64_t columns = axes.empty() ? 1 : axes.back().size, stride = axes.empty() ? 0 : axes.back().stride;
  const int64_t rows = columns == 0 ? 0 : count / columns;
  const int64_t work = std::max<int64_t>(1, columns * static_cast<int64_t>(reduced.size()));
  parallel_for(rows, std::max<int64_t>(1, kElementGrain / work), [&](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      const T* at = from;
      int64_t rest = row;
      for (size_t axis = axes.size(); axis-- > 1;) {
        at += rest % axes[axis - 1].size * axes[axis - 1].stride;
        rest /= axes[axis - 1].size;
      }
      for (int64_t i = 0; i < columns; ++i) {
        T sum = 0;
        for (int64_t offset : reduced) sum = static_cast<T>(sum + at[i * stride + offset]);
        to[row * columns + i] = sum;
      }
    }
  });
}

Arrange prepare_arrangement(DType dtype, const Arrangement& arrangement) {
  return dispatch_numeric(dtype, [&]<typename T>(T) -> Arrange {
    return [kept = arrangement.kept, reduced = offsets_of(arrangement.reduced)](const Launch&, const void* from,
                                                                                void* to) {
      arrange(kept, reduced, static_cast<const T*>(from), static_cast<T*>(to));
    };
  });
}

Prepared multiply(const NodeSpec& spec, const Product& product) { return prepare_product(spec, product); }

}  // namespace

Prepared prepare_einsum(const NodeSpec& spec) { return prepare_einsum(spec, prepare_arrangement, multiply); }

}  // namespace onnx_train::cpu
