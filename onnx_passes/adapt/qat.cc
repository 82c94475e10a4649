#include "onnx_passes/adapt/qat.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/quantization/import_qdq.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

double parse_averaging(const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || !(value > 0 && value <= 1))
    fail("--qat: averaging is '", text, "'; take a number above 0, at most 1");
  return value;
}

// Whether the node only moves or selects what it reads: its result is on the same grid.
bool keeps_steps(const Node& node) {
  return is_view(node) || node.is("Transpose") || node.is("MaxPool") || node.is("Dropout");
}

// A layer whose products integer kernels compute.
struct RoundedLayer {
  Node* node;
  Value* weight;
  int64_t axis;  // of the outputs, in the operand that the node reads
  bool is_convolution;
};

class QatInsertion {
 public:
  QatInsertion(Model* model, const QatSpec& spec) : model_(*model), graph_(*model->graph), spec_(spec) {}

  void run() {
    if (has_adapters(model_)) fail("[Qat] --qat trains all weights; it does not go together with adapters");
    refuse_quantized();
    const std::vector<RoundedLayer> layers = layers_of_model();
    if (layers.empty()) fail("[Qat] the model has no linear layer or convolution whose weight is an initializer");
    for (const RoundedLayer& layer : layers) round_weight(layer);
    for (const RoundedLayer& layer : layers) observe(source_of(layer.node->input(0)));
    for (const RoundedLayer& layer : layers) {
      if (layer.is_convolution) observe(result_of(layer.node->output()));
    }
    add_adapted_note(
        &model_, concat("int8: weights of ", layers.size(), layers.size() == 1 ? " layer, " : " layers, ",
                        spec_.per_channel ? "a scale for each channel; " : "a scale for each; ", observed_.size(),
                        observed_.size() == 1 ? " activation" : " activations", ", whose ranges the steps observe"));
  }

 private:
  // Values that are rounded already would be rounded again, to other numbers.
  void refuse_quantized() const {
    if (const std::string found = find_quantization(graph_); !found.empty())
      fail("[Qat] the model is quantized already (", found,
           "), and trains so, straight through: leave out --qat, or take the float model that it was made from");
  }

  std::vector<RoundedLayer> layers_of_model() const {
    const LinearLayers linear(model_);
    const auto constants = constants_of(model_);
    std::vector<RoundedLayer> layers;
    for (Node* node = graph_.first(); node; node = node->next()) {
      if (const auto layer = linear.of(node)) {
        const bool out_first = layer->is_convolution() || (node->is("Gemm") && node->attr("transB", 0) != 0);
        layers.push_back({node, layer->weight, out_first ? 0 : 1, layer->is_convolution()});
      } else if (node->is("ConvTranspose") && is_weight(*node->input(1), constants)) {
        layers.push_back({node, node->input(1), 1, true});
      }
    }
    return layers;
  }

  bool is_weight(const Value& value, const std::unordered_map<std::string, std::string>& constants) const {
    return value.is_initializer() && &value.graph() == &graph_ && is_float(value.dtype()) && value.has_rank() &&
           value.rank() > 2 && !constants.count(value.name());
  }

  void round_weight(const RoundedLayer& layer) {
    Builder b(&graph_, layer.node);
    b.set_name(layer.weight->name() + "/rounded");
    const Var operand = b.var(layer.node->input(1));
    std::vector<int64_t> axes;
    for (int64_t i = 0; i < operand.rank(); ++i) {
      if (!spec_.per_channel || i != layer.axis) axes.push_back(i);
    }
    layer.node->set_input(1, call(b, "FakeQuantizeWeight", {operand}, {{"axes", axes}}).value());
  }

  static Value* source_of(Value* value) {
    while (value->producer() && keeps_steps(*value->producer()) && value == value->producer()->output())
      value = value->producer()->input(0);
    return value;
  }

  // What a convolution's batch norm and Relu make of its result: integer kernels compute them with it.
  static Value* result_of(Value* result) {
    for (const auto joins : {+[](const Node& node) { return node.is("BatchNormalization"); },
                             +[](const Node& node) { return node.is("Relu") || node.is("Clip"); }}) {
      if (result->uses().size() != 1 || result->graph().is_output(result)) return result;
      const Use& use = result->uses()[0];
      if (use.index == 0 && &use.node->graph() == &result->graph() && joins(*use.node)) result = use.node->output();
    }
    return result;
  }

  void observe(Value* value) {
    const bool varies = value->producer() || graph_.is_input(value);
    if (!varies || !is_float(value->dtype()) || &value->graph() != &graph_) return;
    if (value->producer() && value->producer()->is("FakeQuantizeActivation", kDomain)) return;
    if (!observed_.insert(value).second) return;
    const std::vector<Use> uses = value->uses();
    Builder b(&graph_, value->producer() ? value->producer()->next() : graph_.first());
    const std::string plain = value->name();
    b.set_name(plain + "/quantized");
    const std::string name = model_.unique_name(plain + "/range");
    // [min, max], and for a moving average the weight of what it has seen.
    Value* range = graph_.add_initializer(name, Tensor(value->dtype(), {spec_.averaging > 0 ? 3 : 2}));
    model_.set_metadata(std::string(kConstantRecord) + name,
                        "the range of a quantized activation, which steps observe");
    const float low = spec_.signed_activations ? -128.0f : 0.0f;
    const Var y = call(b, "FakeQuantizeActivation", {b.var(value), b.var(range)},
                       {{"low", low}, {"high", low + 255}, {"averaging", static_cast<float>(spec_.averaging)}});
    for (const Use& use : uses) use.node->set_input(use.index, y.value());
    // An input that is an output, too, stays what it is.
    if (graph_.is_output(value) && value->producer()) give_out(value, y.value());
  }

  // The output of the model is the rounded value, under the output's name: integer kernels give it so.
  void give_out(Value* value, Value* rounded) {
    std::vector<Value*> outputs = graph_.outputs();
    std::replace(outputs.begin(), outputs.end(), value, rounded);
    graph_.set_outputs(std::move(outputs));
    const std::string name = value->name();
    graph_.rename(value, graph_.unique_name(name + "/float"));
    graph_.rename(rounded, name);
  }

  Model& model_;
  Graph& graph_;
  const QatSpec spec_;
  std::set<const Value*> observed_;
};

}  // namespace

QatSpec parse_qat(const std::vector<std::string>& pieces) {
  QatSpec spec;
  bool has_type = false;
  for (const std::string& piece : pieces) {
    const size_t equals = piece.find('=');
    const std::string key = piece.substr(0, equals),
                      value = equals == std::string::npos ? "" : piece.substr(equals + 1);
    // The two values that a key has; the first is the default.
    const auto either = [&](const char* first, const char* second) {
      if (value != first && value != second)
        fail("--qat: ", key, " is '", value, "'; take ", first, " or ", second, did_you_mean(value, {first, second}));
      return value == second;
    };
    if (piece == "int8") {
      has_type = true;
    } else if (key == "weights") {
      spec.per_channel = !either("per_channel", "per_tensor");
    } else if (key == "activations") {
      spec.signed_activations = either("uint8", "int8");
    } else if (key == "observer") {
      if (either("ema", "minmax")) spec.averaging = 0;
    } else if (key == "averaging") {
      spec.averaging = parse_averaging(value);
    } else {
      fail("--qat has no option '", piece, "'; it has int8, weights=, activations=, observer=, averaging=",
           did_you_mean(key, {"int8", "weights", "activations", "observer", "averaging"}));
    }
  }
  if (!has_type) fail("--qat begins with the type: int8");
  return spec;
}

Pass quantization_aware(const QatSpec& spec) {
  return {"quantization_aware", [spec](Model& model) {
            QatInsertion(&model, spec).run();
            return true;
          }};
}

}  // namespace onnx_train
