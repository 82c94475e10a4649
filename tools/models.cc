#include "tools/models.h"

#include <charconv>
#include <cstdlib>
#include <set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/ir/loading.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes/convert_dtype.h"
#include "onnx_passes/passes/expression.h"
#include "onnx_passes/passes/passes.h"
#include "onnx_passes/passes/training_mode.h"
#include "runtime/checkpoint.h"
#include "tools/subcommand.h"

namespace onnx_train {

Model in_precision(Model model, const std::string& dtype) {
  if (dtype == "float32") return model;
  if (dtype != "float64") fail("unknown dtype '", dtype, "'; take float32 or float64");
  onnx::ModelProto proto;
  to_proto(model, &proto, {.all_types = true});
  convert_to_double(&proto);
  return from_proto(std::move(proto));
}

Model load_forward_model(const std::string& path, const std::string& dtype, const std::string& batch) {
  Model model = in_precision(import_model(load_proto(path), batch), dtype);
  infer_types(model.graph.get());  // the conversion keeps types, but not what is known of shapes' contents
  return model;
}

Model load_any_model(const std::string& path) {
  onnx::ModelProto proto = load_proto(path);
  if (!proto.training_info().empty()) return load_training_model(path);
  Model model = import_model(std::move(proto));
  to_inference(*model.graph);
  return model;
}

void check_size(const std::string& text) {
  const size_t equals = text.find('=');
  int64_t value = 0;
  const char* end = text.data() + text.size();
  if (equals == std::string::npos || equals == 0) fail("NAME=N");
  const auto parsed = std::from_chars(text.data() + equals + 1, end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < 0) fail("NAME=N, N a whole number of at least 0");
}

namespace {

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
  for (const InputSpec& spec : inputs) {
    if (spec.has_default) continue;
    if (!spec.type.has_rank()) fail("input '", spec.name, "' has no known rank; give it one in the model");
    Shape shape;
    for (const Dim& dim : *spec.type.dims) {
      const bool first = shape.empty();
      const auto by_symbol = given.find(dim.symbol());
      const int64_t otherwise = first ? (given.count("batch") ? given.at("batch") : batch) : kOther;
      shape.push_back(dim.known() ? dim.value() : by_symbol != given.end() ? by_symbol->second : otherwise);
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
