#include "runtime/data/sample_axes.h"

#include <algorithm>
#include <cstring>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/operators/recurrent.h"

namespace onnx_train {
namespace {

bool has_axes(const TensorType& type) { return type.has_rank() && type.rank() > 0; }

// The dimensions of the labels, or of the first input; none where the model does not say them.
Dims key_of(const Model& model, const std::vector<InputSpec>& inputs) {
  const auto is_key = [](const InputSpec& spec) { return !spec.has_default && has_axes(spec.type); };
  for (const InputSpec& spec : inputs) {
    if (spec.from_loss && is_key(spec)) return *spec.type.dims;
  }
  for (const EntryPoint& point : model.entry_points) {
    for (const Value* input : point.algorithm->inputs()) {
      if (!input->is_initializer() && !input->role() && has_axes(input->type())) return *input->type().dims;
    }
  }
  const auto first = std::ranges::find_if(inputs, is_key);
  return first == inputs.end() ? Dims() : *first->type.dims;
}

}  // namespace

std::string batch_symbol(const Model& model, const std::vector<InputSpec>& inputs) {
  const Dims key = key_of(model, inputs);
  if (key.empty()) return "";
  for (const Node* node = model.graph->first(); node; node = node->next()) {
    if (!is_recurrent(*node) || node->attr("layout", 0) != 0 || !node->input(0)->has_rank()) continue;
    const Dims& x = *node->input(0)->type().dims;
    if (x.size() != 3 || !x[0].same(key[0]) || x[1].symbol().empty() || x[1].same(x[0])) continue;
    if (std::ranges::any_of(key, [&](const Dim& dim) { return dim.same(x[1]); })) return x[1].symbol();
  }
  return key[0].symbol();
}

size_t sample_axis(const TensorType& type, const std::string& symbol) {
  if (symbol.empty() || !type.has_rank()) return 0;
  const auto found = std::ranges::find(*type.dims, symbol, &Dim::symbol);
  return found == type.dims->end() ? 0 : static_cast<size_t>(found - type.dims->begin());
}

Tensor with_axis_at(const Tensor& tensor, size_t from, size_t to) {
  if (from == to) return tensor;
  Shape shape = tensor.shape();
  const int64_t size = shape[from];
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(from));
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(to), size);
  // The axis passes over the axes between: `over` elements of `inner` elements each, `outer` times.
  const size_t low = std::min(from, to), high = std::max(from, to);
  const auto product = [&](size_t begin, size_t end) {
    return num_elements(
        Shape(shape.begin() + static_cast<std::ptrdiff_t>(begin), shape.begin() + static_cast<std::ptrdiff_t>(end)));
  };
  const int64_t outer = product(0, low), inner = product(high + 1, shape.size());
  const int64_t over = product(low, high + 1) / std::max<int64_t>(size, 1);
  const int64_t rows = from < to ? size : over, columns = from < to ? over : size;
  const size_t bytes = static_cast<size_t>(inner) * size_of(tensor.dtype());
  Tensor moved(tensor.dtype(), shape);
  const auto* source = static_cast<const char*>(tensor.data());
  auto* target = static_cast<char*>(moved.data());
  for (int64_t i = 0; bytes > 0 && i < outer; ++i) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c, source += bytes)
        std::memcpy(target + static_cast<size_t>((i * columns + c) * rows + r) * bytes, source, bytes);
    }
  }
  return moved;
}

Tensor first_along(const Tensor& tensor, size_t axis, int64_t count) {
  Shape shape = tensor.shape();
  const auto at = shape.begin() + static_cast<std::ptrdiff_t>(axis);
  if (*at <= count) return tensor;
  const auto all = static_cast<size_t>(*at);
  const int64_t outer = num_elements(Shape(shape.begin(), at));
  const size_t piece = tensor.bytes() / (static_cast<size_t>(outer) * all);  // bytes of an element along the axis
  *at = count;
  Tensor first(tensor.dtype(), shape);
  const size_t bytes = piece * static_cast<size_t>(count);
  for (size_t i = 0; i < static_cast<size_t>(outer); ++i)
    std::memcpy(static_cast<char*>(first.data()) + i * bytes, static_cast<const char*>(tensor.data()) + i * piece * all,
                bytes);
  return first;
}

std::string sample_axes_note(const Dataset& data) {
  std::string text;
  for (const Dataset::Array& array : data.arrays()) {
    if (array.per_sample && array.axis > 0)
      text += concat(text.empty() ? "samples of '" : "', of '", array.name, "' are along its axis ", array.axis);
  }
  return text.empty() ? "" : concat(text, ", which has the batch's size in the model; batches are cut along it");
}

}  // namespace onnx_train
