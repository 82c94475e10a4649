#include "tools/models.h"

#include <charconv>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/ir/loading.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes/convert_dtype.h"
#include "onnx_passes/passes/passes.h"
#include "onnx_passes/passes/training_mode.h"
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
