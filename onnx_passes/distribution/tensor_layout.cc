#include "onnx_passes/distribution/tensor_layout.h"

#include <cstring>

namespace onnx_train {
namespace {

// Calls f(offset in the whole tensor, offset in the part, bytes) for each piece that is contiguous in both.
template <typename F>
void for_each_piece(const Shape& whole, size_t element, const Cut& cut, int64_t parts, int64_t part, const F& f) {
  const auto axis = static_cast<size_t>(cut.axis);
  int64_t outer = 1, inner = static_cast<int64_t>(element);
  for (size_t i = 0; i < axis; ++i) outer *= whole[i];
  for (size_t i = axis + 1; i < whole.size(); ++i) inner *= whole[i];
  const int64_t run = cut.period * inner, piece = run / parts, runs = outer * (whole[axis] / cut.period);
  for (int64_t i = 0; i < runs; ++i) {
    f(static_cast<size_t>(i * run + part * piece), static_cast<size_t>(i * piece), static_cast<size_t>(piece));
  }
}

}  // namespace

bool divides(const Cut& cut, int64_t size, int64_t parts) {
  return cut.period > 0 && cut.period % parts == 0 && size % cut.period == 0;
}

Shape shape_of_part(Shape whole, const Cut& cut, int64_t parts) {
  whole[static_cast<size_t>(cut.axis)] /= parts;
  return whole;
}

TensorType type_of_part(TensorType whole, const Cut& cut, int64_t parts) {
  if (!whole.dims) return whole;
  Dim& dim = (*whole.dims)[static_cast<size_t>(cut.axis)];
  dim = dim.known() ? Dim(dim.value() / parts) : Dim();
  return whole;
}

Tensor take_part(const Tensor& whole, const Cut& cut, int64_t parts, int64_t part) {
  Tensor own(whole.dtype(), shape_of_part(whole.shape(), cut, parts));
  if (own.size() == 0) return own;
  const auto* const from = static_cast<const char*>(whole.data());
  auto* const to = static_cast<char*>(own.data());
  for_each_piece(whole.shape(), size_of(whole.dtype()), cut, parts, part,
                 [&](size_t at, size_t own_at, size_t bytes) { std::memcpy(to + own_at, from + at, bytes); });
  return own;
}

void put_part(const Tensor& own, const Shape& whole, const Cut& cut, int64_t parts, int64_t part, void* to) {
  if (own.size() == 0) return;
  const auto* const from = static_cast<const char*>(own.data());
  for_each_piece(whole, size_of(own.dtype()), cut, parts, part, [&](size_t at, size_t own_at, size_t bytes) {
    std::memcpy(static_cast<char*>(to) + at, from + own_at, bytes);
  });
}

}  // namespace onnx_train
