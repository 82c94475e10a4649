#include "kernels/cpu/movement/strided_copy.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/support/parallel.h"
#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {

StridedIndex::StridedIndex(const CopyAxis* axes, int num_axes, int64_t index) : axes_(axes), num_axes_(num_axes) {
  for (int k = num_axes - 1; k >= 0; --k) {
    at_[k] = index % axes[k].size;
    index /= axes[k].size;
    from_ += at_[k] * axes[k].from;
    to_ += at_[k] * axes[k].to;
  }
}

void StridedIndex::next() {
  for (int k = num_axes_ - 1; k >= 0; --k) {
    from_ += axes_[k].from;
    to_ += axes_[k].to;
    if (++at_[k] < axes_[k].size) return;
    at_[k] = 0;
    from_ -= axes_[k].from * axes_[k].size;
    to_ -= axes_[k].to * axes_[k].size;
  }
}

namespace {

constexpr int64_t kTile = 16;  // elements: a cache line of floats

template <typename T>
void copy_row(const T* __restrict from, int64_t from_stride, T* __restrict to, int64_t to_stride, int64_t n) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
  } else if (from_stride == 0 && to_stride == 1) {
    std::fill(to, to + n, *from);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

}  // namespace

StridedCopy::StridedCopy(std::vector<CopyAxis> axes, size_t element_bytes) : element_bytes_(element_bytes) {
  for (const CopyAxis& a : axes) {
    if (a.size == 0) num_outer_ = 0;
  }
  if (num_outer_ == 0) return;
  outer_ = merge_axes(std::move(axes));
  if (outer_.size() > kMaxAxes) fail("a tensor with more than ", kMaxAxes, " axes cannot be rearranged");
  if (outer_.empty()) return;
  inner_ = outer_.back();
  outer_.pop_back();
  const auto columns = std::find_if(outer_.begin(), outer_.end(), [](const CopyAxis& a) { return a.from == 1; });
  if (inner_.to == 1 && std::abs(inner_.from) > 1 && columns != outer_.end()) {
    transposes_ = true;
    columns_ = *columns;
    outer_.erase(columns);
  }
  for (const CopyAxis& a : outer_) num_outer_ *= a.size;
}

// Copies rows, or parts of rows, of the innermost axis.
template <typename T>
void StridedCopy::run_as(const T* from, T* to) const {
  const int64_t n = inner_.size;
  parallel_for(num_outer_ * n, kElementGrain, [&](int64_t begin, int64_t end) {
    StridedIndex cursor(outer_.data(), static_cast<int>(outer_.size()), begin / n);
    for (int64_t i = begin % n; begin < end; cursor.next(), i = 0) {
      const int64_t count = std::min(n - i, end - begin);
      copy_row(from + cursor.from() + i * inner_.from, inner_.from, to + cursor.to() + i * inner_.to, inner_.to, count);
      begin += count;
    }
  });
}

// Transposes strips of kTile rows of `to`, tile by tile, so that both sides use whole cache lines.
template <typename T>
void StridedCopy::transpose(const T* from, T* to) const {
  const int64_t strips = (columns_.size + kTile - 1) / kTile;
  const int64_t grain = std::max<int64_t>(kElementGrain / (kTile * inner_.size), 1);
  parallel_for(num_outer_ * strips, grain, [&](int64_t begin, int64_t end) {
    StridedIndex cursor(outer_.data(), static_cast<int>(outer_.size()), begin / strips);
    for (int64_t strip = begin % strips; begin < end; ++begin) {
      const int64_t rows = std::min(kTile, columns_.size - strip * kTile);
      const T* f = from + cursor.from() + strip * kTile;
      T* t = to + cursor.to() + strip * kTile * columns_.to;
      for (int64_t c0 = 0; c0 < inner_.size; c0 += kTile) {
        const int64_t c1 = std::min(c0 + kTile, inner_.size);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = c0; c < c1; ++c) t[r * columns_.to + c] = f[c * inner_.from + r];
        }
      }
      if (++strip == strips) {
        strip = 0;
        cursor.next();
      }
    }
  });
}

void StridedCopy::run(const void* from, void* to) const {
  if (num_outer_ == 0) return;
  dispatch_size(element_bytes_, [&]<typename T>(T) {
    const T* f = static_cast<const T*>(from);
    T* t = static_cast<T*>(to);
    transposes_ ? transpose(f, t) : run_as(f, t);
  });
}

}  // namespace onnx_train::cpu
