// What preprocessing does to the elements of arrays.
#include <algorithm>

#include <onnx/onnx_pb.h>

#include "kernels/dispatch.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/text/expression.h"
#include "runtime/data/dataset.h"
#include "runtime/data/preprocess.h"
#include "runtime/data/sample_axes.h"
#include "runtime/support/options.h"

namespace onnx_train {

void apply_rescaling(const std::string& input, const Rescaling& rescaling, const Shape& row, Tensor* tensor) {
  const auto channels = static_cast<int64_t>(rescaling.scale.size());
  int64_t inner = tensor->size();  // elements between two channels
  if (channels > 1) {
    inner = 1;
    if (!row.empty() && row.front() == channels) {
      inner = num_elements(row) / channels;
    } else if (row.empty() || row.back() != channels) {
      fail_as(ErrorCode::kData, "'", input, "' is normalized with ", channels, " channels, but its samples are ",
              to_string(row));
    }
  }
  dispatch_float(tensor->dtype(), [&](auto tag) {
    using T = decltype(tag);
    T* values = tensor->data<T>();
    for (int64_t at = 0, c = 0; at < tensor->size(); at += inner, c = c + 1 == channels ? 0 : c + 1) {
      const T scale = static_cast<T>(rescaling.scale[size_t(c)]), shift = static_cast<T>(rescaling.shift[size_t(c)]);
      for (int64_t i = at; i < at + inner; ++i) values[i] = values[i] * scale + shift;
    }
  });
}

void apply(const Preprocess& preprocess, const std::vector<InputSpec>& inputs, TensorMap* batch) {
  if (preprocess.empty()) return;
  for (const InputSpec& spec : inputs) {
    const auto found = batch->find(spec.name);
    if (preprocess.steps(spec.name).empty() || found == batch->end()) continue;
    const Rescaling rescaling = preprocess.rescaling(spec.name);
    for (const Step& step : preprocess.steps(spec.name)) {
      if (!is_picture_step(step)) continue;
      throw UsageError(concat("input '", spec.name, "' is preprocessed by ", step.text,
                              ", which is not done to batches of a program: give files or whole arrays"));
    }
    if (rescaling.is_identity()) continue;
    Tensor& tensor = found->second;
    if (tensor.is_on_device()) {
      throw UsageError(concat("input '", spec.name, "' is scaled (", preprocess.text(), "), but in a device's memory"));
    }
    tensor = tensor.dtype() == spec.type.dtype ? tensor.clone() : tensor.cast(spec.type.dtype);
    const size_t axis = spec.sample_axis < tensor.shape().size() ? spec.sample_axis : 0;
    tensor = with_axis_at(tensor, axis, 0);
    const Shape& shape = tensor.shape();
    apply_rescaling(spec.name, rescaling, Shape(shape.begin() + (shape.empty() ? 0 : 1), shape.end()), &tensor);
    tensor = with_axis_at(tensor, 0, axis);
  }
}

std::string bytes_expected(const Value& input) {
  constexpr double kFar = 16;  // of 0 to 1 there are no means, no deviations and no divisors as large
  const Value* value = &input;
  for (int depth = 0; value && depth < 4; ++depth) {
    const Value* next = nullptr;
    for (const Use& use : value->uses()) {
      const Node& node = *use.node;
      const OperatorKind kind = operator_of(node).kind;
      const bool moves = kind == OperatorKind::kView || kind == OperatorKind::kRearrangement || node.is("Cast");
      if (moves && use.index == 0) next = node.output();
      const bool is_first = use.index == 0 || node.is("Add") || node.is("Mul");
      const Value* operand = node.input(use.index == 0 ? 1 : 0);
      const char* what = node.is("Div")   ? "divides by "
                         : node.is("Mul") ? "multiplies by "
                         : node.is("Sub") ? "subtracts "
                         : node.is("Add") ? "adds "
                                          : nullptr;
      if (!what || !is_first || !operand) continue;
      // A session has taken the contents of its states.
      if (operand->initializer() && operand->initializer()->data_location() == onnx::TensorProto::EXTERNAL) continue;
      const Tensor constant = constant_of(operand);
      if (constant.size() == 0 || !is_float(constant.dtype())) continue;
      const double x = constant.at(0);
      const bool shows = node.is("Mul") ? x > 0 && x < 1 / kFar : node.is("Add") ? x < -kFar : x > kFar;
      if (shows) return concat(node.label(), " ", what, number_text(static_cast<float>(x)));
    }
    value = next;
  }
  return "";
}

namespace {

// Whether the network itself brings the input into another range: a mean is subtracted, a batch norm follows.
bool is_normalized(const Model& model, const std::string& input) {
  const Value* value = model.graph->find(input);
  if (!value) return false;
  return std::any_of(value->uses().begin(), value->uses().end(), [](const Use& use) {
    const std::string& op = use.node->op();
    return op == "Mul" || op == "Div" || op == "Sub" || op == "Cast" || op == "BatchNormalization" ||
           op == "QuantizeLinear";
  });
}

}  // namespace

std::string bytes_hint(const Dataset& data, const Model& model) {
  constexpr int64_t kLooked = 1 << 16;
  for (const Dataset::Array& array : data.arrays()) {
    const Tensor& stored = array.rows.stored();
    const bool is_bytes =
        stored.dtype() == DType::kUint8 && is_float(array.dtype) && array.values.is_identity() && stored.size() > 0;
    const Value* input = model.graph->find(array.name);
    if (!is_bytes || !input || !model.graph->is_input(input) || is_normalized(model, array.name)) continue;
    const uint8_t* values = stored.data<uint8_t>();
    const uint8_t most = *std::max_element(values, values + std::min(stored.size(), kLooked));
    if (most <= 1) continue;  // a mask
    return concat("'", array.name,
                  "' holds bytes, which enter the network as 0 to 255: --scale 1/255 makes them 0 to 1",
                  ", --scale 1 leaves this hint out");
  }
  return "";
}

}  // namespace onnx_train
