#include "onnx_passes/quantization/qdq.h"

#include <cstring>

#include "onnx_passes/inference/inference.h"

namespace onnx_train {
namespace {

struct TypeRow {
  DType dtype;
  QuantizedRange range;
};

// From the smallest to the largest.
constexpr TypeRow kTypes[] = {{kUint4, {0, 15}},
                              {kInt4, {-8, 7}},
                              {DType::kUint8, {0, 255}},
                              {DType::kInt8, {-128, 127}},
                              {DType::kUint16, {0, 65535}},
                              {DType::kInt16, {-32768, 32767}},
                              {DType::kInt32, {-2147483648.0, 2147483647.0}}};

}  // namespace

std::optional<QuantizedRange> range_of(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return row.range;
  }
  return std::nullopt;
}

DType type_of(const QuantizedRange& range) {
  for (const TypeRow& row : kTypes) {
    if (row.range.low <= range.low && range.high <= row.range.high) return row.dtype;
  }
  return DType::kInt32;
}

std::optional<Granularity> granularity_of(const Node& node) {
  const Value &x = *node.input(0), &scale = *node.input(1);
  if (!scale.has_rank()) return std::nullopt;
  const int64_t block = node.attr("block_size", 0);
  const bool single = scale.rank() == 0 ||
                      (scale.rank() == 1 && scale.type().is_static() && scale.type().shape()[0] == 1 && block == 0);
  if (single) return Granularity{};
  if (!x.has_rank() || x.rank() == 0) return std::nullopt;
  const int64_t axis = normalize_axis(node.attr("axis", 1), x.rank());
  if (scale.rank() == 1 && block == 0) return Granularity{axis, 0};
  if (block < 1 || scale.rank() != x.rank()) return std::nullopt;
  return Granularity{axis, block};
}

Var broadcast_parameter(Var parameter, const Granularity& of, int64_t rank) {
  if (of.axis < 0) return rank == 0 && parameter.rank() > 0 ? reshape(parameter, std::vector<int64_t>{}) : parameter;
  if (of.block > 0) return unsqueeze(parameter, {of.axis + 1});
  std::vector<int64_t> sizes(static_cast<size_t>(rank - of.axis), 1);
  sizes[0] = -1;
  return sizes.size() == 1 ? parameter : reshape(parameter, sizes);
}

Var split_blocks(Var x, const Granularity& of) {
  if (of.block == 0) return x;
  if (!x.type().is_static()) return {};
  Shape shape = x.type().shape();
  const auto at = static_cast<size_t>(of.axis);
  if (shape[at] % of.block != 0 || num_elements(shape) == 0) return {};
  shape[at] /= of.block;
  shape.insert(shape.begin() + of.axis + 1, of.block);
  return reshape(x, shape);
}

Var join_blocks(Var y, const Granularity& of, Var like) { return of.block == 0 ? y : reshape(y, shape_of(like)); }

bool are_same(const Value* a, const Value* b) {
  // The body of DynamicQuantizeLinear passes on its scale.
  if (a && a->producer() && a->producer()->is("Identity")) a = a->producer()->input(0);
  if (b && b->producer() && b->producer()->is("Identity")) b = b->producer()->input(0);
  if (a == b) return true;
  if (!a || !b) return false;
  const Tensor x = constant_of(a), y = constant_of(b);
  if (x.empty() || y.empty() || x.dtype() != y.dtype() || x.size() != y.size()) return false;
  return std::memcmp(x.data(), y.data(), x.bytes()) == 0;
}

}  // namespace onnx_train
