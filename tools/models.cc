#include "tools/models.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/ir/loading.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes/convert_dtype.h"
#include "onnx_passes/passes/passes.h"
#include "runtime/checkpoint.h"

namespace onnx_train {

Model in_precision(Model model, const std::string& dtype) {
  if (dtype == "float32") return model;
  if (dtype != "float64") fail("unknown dtype '", dtype, "'; take float32 or float64");
  onnx::ModelProto proto;
  to_proto(model, &proto, {.all_types = true});
  convert_to_double(&proto);
  return from_proto(std::move(proto));
}

Model load_forward_model(const std::string& path, const std::string& dtype, const ImportOptions& options,
                         std::vector<Finding>* findings) {
  Model model = in_precision(import_model(load_proto(path), options, findings), dtype);
  infer_types(model.graph.get());  // the conversion keeps types, but not what is known of shapes' contents
  return model;
}

CommandOption batch_option(ImportOptions* options) {
  return {"--batch", &options->batch, "give the batch dimension this size, or make it dynamic [as exported]",
          "N|dynamic"};
}

CommandOption set_option(ImportOptions* options) {
  return {"--set", &options->set, "make an input that only selects a constant, such as sr=16000, and fold its branches",
          "NAME=VALUE"};
}

CommandOption fix_shapes_option(ImportOptions* options) {
  return {"--fix-shapes", &options->fix_shapes, "drop declared shapes that the model's contents contradict"};
}

Model load_any_model(const std::string& path) {
  onnx::ModelProto proto = load_proto(path);
  if (proto.training_info().empty()) return import_model(std::move(proto));
  return load_training_model(path);
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

}  // namespace

std::map<std::string, Shape> example_shapes(const std::vector<InputSpec>& inputs, int64_t batch,
                                            const std::vector<std::string>& sizes) {
  std::map<std::string, int64_t> given;
  for (const std::string& text : sizes) {
    const size_t equals = text.find('=');
    int64_t value = 0;
    const char* end = text.data() + text.size();
    if (equals == std::string::npos || equals == 0 ||
        std::from_chars(text.data() + equals + 1, end, value).ptr != end || value < 0) {
      fail("--dim takes NAME=N, not '", text, "'");
    }
    given[text.substr(0, equals)] = value;
  }
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
