#include "runtime/example_inputs.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes/expression.h"
#include "onnx_passes/passes/passes.h"
#include "runtime/options.h"

namespace onnx_train {

void check_size(const std::string& text) {
  const size_t equals = text.find('=');
  int64_t value = 0;
  const char* end = text.data() + text.size();
  if (equals == std::string::npos || equals == 0) fail("NAME=N");
  const auto parsed = std::from_chars(text.data() + equals + 1, end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < 0) fail("NAME=N, N a whole number of at least 0");
}

namespace {

// The size of a dimension such as "8*batch", as inference writes products, from those of its factors.
std::optional<int64_t> product_of(const std::string& symbol, const std::map<std::string, int64_t>& sizes) {
  int64_t product = 1;
  for (size_t start = 0; start <= symbol.size();) {
    const size_t end = std::min(symbol.find('*', start), symbol.size());
    const std::string factor = symbol.substr(start, end - start);
    int64_t number = 0;
    const char* stop = factor.data() + factor.size();
    if (const auto found = sizes.find(factor); found != sizes.end()) {
      number = found->second;
    } else if (factor.empty() || std::from_chars(factor.data(), stop, number).ptr != stop) {
      return std::nullopt;
    }
    if (__builtin_mul_overflow(product, number, &product)) return std::nullopt;
    start = end + 1;
  }
  return product;
}

std::map<std::string, int64_t> parse_sizes(const std::vector<std::string>& sizes) {
  std::map<std::string, int64_t> given;
  for (const std::string& text : sizes) {
    check_size(text);
    const size_t equals = text.find('=');
    const int64_t value = std::strtoll(text.c_str() + equals + 1, nullptr, 10);
    if (!given.emplace(text.substr(0, equals), value).second) {
      throw UsageError(concat("--dim ", text.substr(0, equals), " is given twice"));
    }
  }
  return given;
}

// Every name is that of a symbolic dimension, or "batch".
void check_names(const std::vector<InputSpec>& inputs, const std::map<std::string, int64_t>& given) {
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
    fail("--dim ", name, "=", size, ": no input has a dimension '", name, "'; ",
         all.empty() ? "all sizes are fixed" : "those of no fixed size are " + all,
         did_you_mean(name, {symbols.begin(), symbols.end()}));
  }
}

}  // namespace

std::map<std::string, Shape> example_shapes(const std::vector<InputSpec>& inputs, int64_t batch,
                                            const std::vector<std::string>& sizes) {
  const std::map<std::string, int64_t> given = parse_sizes(sizes);
  check_names(inputs, given);
  constexpr int64_t kOther = 8;
  std::map<std::string, Shape> shapes;
  const auto size_of_symbol = [&](const std::string& symbol, int64_t otherwise) {
    const auto found = given.find(symbol);
    return found != given.end() ? found->second : product_of(symbol, given).value_or(otherwise);
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
