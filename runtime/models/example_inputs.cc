#include "runtime/models/example_inputs.h"

#include <algorithm>
#include <set>

#include "onnx_passes/import/sizes.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {

void check_size(const std::string& text) { parse_size(text); }

namespace {

// Every name is that of a symbolic dimension, or "batch".
void check_names(const std::vector<InputSpec>& inputs, const Sizes& given) {
  std::set<std::string> symbols;
  for (const InputSpec& spec : inputs) {
    if (!spec.type.has_rank() || spec.has_default) continue;
    for (const Dim& dim : *spec.type.dims) {
      if (!dim.symbol().empty()) symbols.insert(dim.symbol());
      if (!dim.known() && &dim == &spec.type.dims->front()) symbols.insert("batch");
    }
  }
  std::string all;
  for (const std::string& symbol : symbols) all += concat(all.empty() ? "" : ", ", symbol);
  for (const auto& [name, size] : given) {
    if (symbols.count(name)) continue;
    fail_as(ErrorCode::kNoDimension, "--dim ", name, "=", size, ": no input has a dimension '", name, "'; ",
            all.empty() ? "all sizes are fixed" : "those of no fixed size are " + all,
            did_you_mean(name, {symbols.begin(), symbols.end()}));
  }
}

}  // namespace

std::map<std::string, Shape> example_shapes(const std::vector<InputSpec>& inputs, int64_t batch,
                                            const std::vector<std::string>& sizes) {
  const Sizes given = parse_sizes(sizes);
  check_names(inputs, given);
  constexpr int64_t kOther = 8;
  std::map<std::string, Shape> shapes;
  const auto size_of_symbol = [&](const std::string& symbol, int64_t otherwise) {
    return evaluate_size(symbol, given).value_or(otherwise);
  };
  for (const InputSpec& spec : inputs) {
    if (spec.has_default) continue;
    if (!spec.type.has_rank()) fail("input '", spec.name, "' has no known rank; give it one in the model");
    Shape shape;
    for (const Dim& dim : *spec.type.dims) {
      const bool first = shape.empty();
      const int64_t otherwise = first ? (given.count("batch") ? given.at("batch") : batch) : kOther;
      shape.push_back(dim.known() ? dim.value() : size_of_symbol(dim.symbol(), otherwise));
    }
    shapes.emplace(spec.name, std::move(shape));
  }
  return shapes;
}

TensorMap example_batch(const std::vector<InputSpec>& inputs, const std::map<std::string, Shape>& shapes) {
  TensorMap batch;
  for (const InputSpec& spec : inputs) {
    const auto shape = shapes.find(spec.name);
    if (shape == shapes.end()) continue;
    Tensor tensor(spec.type.dtype, shape->second);
    for (int64_t i = 0; is_float(tensor.dtype()) && i < tensor.size(); ++i) {
      tensor.set(i, static_cast<double>(i * 7919 % 2001) / 1000 - 1);
    }
    batch[spec.name] = std::move(tensor);
  }
  return batch;
}

}  // namespace onnx_train
