#include "onnx_passes/adapt/linear_layers.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/model/liveness.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/quantization/import_qdq.h"

namespace onnx_train {
namespace {

bool is_product(const Node& node) { return node.is("MatMul") || node.is("Gemm") || node.is("Conv"); }

// The name that the weight has in the module of its layer. Of a weight that is an embedding, too, exporters write one
// of its names. All layers of such a weight have the name that it has in the first one: their adapter is one.
std::string name_at_layers(const Value& weight) {
  const auto looks_up = [](const Use& use) { return use.node->is("Gather"); };
  if (std::none_of(weight.uses().begin(), weight.uses().end(), looks_up)) return weight.name();
  for (const Use& use : weight.uses()) {
    const Node& reader = reader_of(use);
    if (!is_product(reader)) continue;
    const std::string told = name_at_reader(weight, reader);
    if (!told.empty()) return told;
  }
  return weight.name();
}

// PyTorch's older exporter calls a weight that it has transposed "onnx::MatMul_123".
std::string name_of_module(const Value& weight, const Node& node) {
  if (const Value* stored = weight.producer() ? stored_weight(*weight.producer()) : nullptr) {
    const std::vector<std::string> names = other_names(*stored);
    const std::string scope = stored->name().starts_with("onnx::") ? module_of_scope(node.name()) : "";
    return !scope.empty() ? scope : module_of(names.empty() ? weight.name() : names[0]);
  }
  const std::string scope = weight.name().starts_with("onnx::") ? module_of_scope(node.name()) : "";
  return scope.empty() ? module_of(name_at_layers(weight)) : scope;
}

bool is_constant_value(const Value* value) {
  return value->is_initializer() || (value->producer() && value->producer()->is("Constant"));
}

bool is_transpose_of_matrix(const Node& node) {
  return node.is("Transpose") && node.attr("perm", std::vector<int64_t>{1, 0}) == std::vector<int64_t>{1, 0} &&
         node.input(0)->has_rank() && node.input(0)->rank() == 2;
}

// The Add of a bias that is the only reader of the product.
void find_bias_after(const Graph& graph, LinearLayer* layer) {
  Value* product = layer->node->output();
  if (product->uses().size() != 1 || graph.is_output(product)) return;
  const Use& use = product->uses()[0];
  if (!use.node->is("Add") || &use.node->graph() != &graph) return;
  Value* bias = use.node->input(1 - use.index);
  const bool fits = bias && bias->is_initializer() && bias->type().is_static() && bias->rank() == 1 &&
                    bias->type().shape()[0] == layer->out();
  if (!fits) return;
  layer->adds_bias = use.node;
  layer->bias = bias;
}

}  // namespace

double LinearLayer::fan_in() const {
  return static_cast<double>(num_elements(weight->type().shape())) / static_cast<double>(std::max<int64_t>(out(), 1));
}

Value* stored_source(Value* operand) {
  Node* node = operand->producer();
  const bool rounds = node && (stored_weight(*node) || node->is("FakeQuantizeInteger", kDomain));
  Value* source = rounds ? node->input(0) : operand;
  return source->is_initializer() ? source : nullptr;
}

LinearLayers::LinearLayers(const Model& model, bool integers, bool rounded)
    : graph_(model.graph.get()), integers_(integers), rounded_(rounded) {
  for (const auto& [name, why] : constants_of(model)) constants_.insert(name);
}

std::optional<LinearLayer> LinearLayers::of(Node* node) const {
  const bool gemm = node->is("Gemm"), convolution = node->is("Conv");
  if (!is_product(*node) || !node->output()) return std::nullopt;
  LinearLayer layer;
  layer.node = node;
  layer.weight = node->input(1);
  bool transposed = gemm && node->attr("transB", 0) != 0;
  if (const Node* before = layer.weight->producer(); before && is_transpose_of_matrix(*before)) {
    layer.weight = before->input(0);
    transposed = !transposed;
  }
  const Value& weight = *layer.weight;
  const bool is_stored = integers_ && weight.producer() && stored_weight(*weight.producer());
  const bool is_rounded = rounded_ && stored_source(layer.weight);
  if ((!weight.is_initializer() && !is_stored && !is_rounded) || &weight.graph() != graph_) return std::nullopt;
  if (!is_float(weight.dtype()) || !weight.type().is_static() || constants_.count(weight.name())) return std::nullopt;
  const bool right_rank = convolution ? weight.rank() > 2 : weight.rank() == 2;
  if (!right_rank || num_elements(weight.type().shape()) == 0 || node->attr("transA", 0) != 0) return std::nullopt;
  layer.out_first = convolution || transposed;
  layer.groups = convolution ? node->attr("group", 1) : 1;
  layer.factor = gemm ? static_cast<double>(node->attr("alpha", 1.0f)) : 1;
  if (layer.factor == 0 || layer.groups < 1 || layer.out() % layer.groups != 0) return std::nullopt;
  layer.module = name_of_module(weight, *node);
  layer.weight_name = name_at_layers(weight);
  if (Value* bias = node->input(2); bias && (bias->is_initializer() || (rounded_ && stored_source(bias))))
    layer.bias = bias;
  if (node->num_inputs() < 3) find_bias_after(*graph_, &layer);
  return layer;
}

std::vector<LinearLayer> LinearLayers::all() const {
  std::vector<LinearLayer> layers;
  for (Node* node = graph_->first(); node; node = node->next()) {
    if (auto layer = of(node)) layers.push_back(*layer);
  }
  return layers;
}

LinearLayer find_head(const Model& model, Value* output) {
  const LinearLayers layers(model, /*integers=*/true, /*rounded=*/true);
  const auto no_head = [&](const auto&... why) {
    fail("[Head] output '", output->name(), "' has no linear layer of its own: ", why...,
         "; name another output, or make an inner value one: --cut");
  };
  // The values that the output is computed from, as seen from the node that is looked at.
  Marks<Value> needed;
  needed.insert(output);
  size_t open = 1;
  for (Node* node = output->producer(); node && open > 0; node = node->previous()) {
    Value* found = nullptr;
    for (Value* value : node->outputs()) {
      if (!value || !needed.contains(value)) continue;
      needed.erase(value);
      --open;
      found = value;
    }
    if (!found) continue;
    if (auto layer = layers.of(node)) {
      if (open > 0) no_head(node->label(), " is not the only one that it is computed from");
      return *layer;
    }
    for (Value* input : node->inputs()) {
      if (!input || !is_float(input->dtype()) || needed.contains(input)) continue;
      if (node->is("FakeQuantizeInteger", kDomain) && input != node->input(0)) continue;  // how it rounds
      if (!is_constant_value(input)) {
        if (!input->producer()) continue;
        needed.insert(input);
        ++open;
        continue;
      }
      const bool is_bias = std::any_of(node->inputs().begin(), node->inputs().end(), [&](Value* other) {
        if (!other || other == input || !other->producer()) return false;
        const auto layer = layers.of(other->producer());
        return layer && layer->bias == input;
      });
      if (!is_bias && input->is_initializer() && input->has_rank() && input->rank() > 0 &&
          (!input->type().is_static() || num_elements(input->type().shape()) > 1)) {
        no_head(node->label(), " is after it, and has weights of its own ('", input->name(), "')");
      }
    }
  }
  no_head("it is computed by none");
  return {};
}

Tensor weight_of(const LinearLayer& layer) {
  const Node* producer = layer.weight->producer();
  const Tensor numbers = producer ? dequantized(*producer) : contents_of(*layer.weight);
  if (numbers.empty()) fail("[Adapter] the scale of the weight of ", layer.node->label(), " is not a constant");
  return numbers;
}

std::vector<double> norms_of_outputs(const LinearLayer& layer, const Tensor& w) {
  std::vector<double> norms(static_cast<size_t>(layer.out()));
  for_each_element(layer, [&](int64_t at, int64_t out, int64_t) {
    const double x = layer.factor * w.at(at);
    norms[static_cast<size_t>(out)] += x * x;
  });
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

Tensor magnitude_of(const LinearLayer& layer, const Tensor& w) {
  const std::vector<double> norms = norms_of_outputs(layer, w);
  Tensor magnitude(w.dtype(), {layer.out()});
  for (int64_t i = 0; i < magnitude.size(); ++i) {
    magnitude.set(i, norms[static_cast<size_t>(i)]);
    if (magnitude.at(i) == 0) {
      fail("[Adapter] output ", i, " of ", layer.node->label(),
           " has weights of zero, by whose norm DoRA divides: leave the layer out of the targets");
    }
  }
  return magnitude;
}

Tensor draw_uniform(DType dtype, const Shape& shape, double bound, uint64_t seed, const std::string& name) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  std::mt19937_64 random(hash ^ (seed * 0x9e3779b97f4a7c15u));
  Tensor tensor(dtype, shape);
  const auto next = [&] { return (static_cast<double>(random() >> 11) * 0x1p-53 * 2 - 1) * bound; };
  if (dtype == DType::kFloat) {
    auto* to = tensor.data<float>();
    for (int64_t i = 0; i < tensor.size(); ++i) to[i] = static_cast<float>(next());
  } else {
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, next());
  }
  return tensor;
}

Value* replace_initializer(Graph* graph, Value* old, std::shared_ptr<const onnx::TensorProto> message) {
  const std::string name = old->name();
  graph->rename(old, graph->unique_name(name + "/replaced"));
  Value* value = graph->add_initializer(name, std::move(message));
  graph->replace(old, value);
  return value;
}

void put_after(Value* value, Value* changed) {
  Graph& graph = value->graph();
  const std::string name = value->name();
  Node* node = changed->producer();
  graph.replace(value, changed);
  node->set_input(0, value);
  graph.rename(value, graph.unique_name(name + "/base"));
  if (changed->name() != name) graph.rename(changed, name);
}

bool is_read_by_one(const Value& weight) {
  const Value* value = &weight;
  for (int i = 0; i < 2; ++i) {
    if (value->uses().size() != 1 || value->graph().is_output(value)) return false;
    const Node& reader = *value->uses()[0].node;
    if (!is_transpose_of_matrix(reader)) return true;
    value = reader.output();
  }
  return value->uses().size() == 1;
}

void read_own_weight(const LinearLayer& layer, Value* weight) {
  Value* operand = weight;
  if (layer.node->input(1) != layer.weight) {
    Builder b(&layer.node->graph(), layer.node);
    b.set_name(weight->name() + "/transposed");
    operand = transpose(b.var(weight), {1, 0}).value();
  }
  layer.node->set_input(1, operand);
}

void remove_unneeded(Model* model, const std::unordered_set<const Value*>& read_before) {
  Graph& graph = *model->graph;
  Liveness live;
  for (const Value* output : graph.outputs()) live.need(output);
  live.trace(graph);
  for (Node *node = graph.last(), *previous = nullptr; node; node = previous) {
    previous = node->previous();
    if (!live.runs(node)) graph.remove(node);
  }
  const std::vector<Value*> inputs = graph.inputs();
  for (auto input = inputs.rbegin(); input != inputs.rend(); ++input) {
    const bool idle = (*input)->uses().empty() && !graph.is_output(*input);
    if (idle && read_before.count(*input)) graph.remove_input(*input);
  }
  graph.remove_unused_initializers();
}

}  // namespace onnx_train
