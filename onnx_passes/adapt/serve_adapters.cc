#include "onnx_passes/adapt/serve_adapters.h"

#include <unordered_set>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/model/adapter_records.h"

namespace onnx_train {
namespace {

constexpr const char* kNoAdapters = " has no adapters: build it with --lora, --ia3, --bitfit or --adapter";

// Each has the rank that the model has, and a scale of 1.
AdapterSpec unscaled_spec(const Model& model, const AdapterSpec& own) {
  AdapterSpec spec;
  spec.method = "lora";
  spec.dora = own.dora;
  spec.exact = true;
  for (const AdapterPart& part : adapter_parts(model)) {
    const Value* tensor = model.graph->find(part.tensor);
    if (part.part != parts::kA || !tensor) continue;
    const std::string module = module_of_part(part), pattern = "^" + module;
    const int64_t rank = tensor->type().shape()[0];
    spec.targets.push_back(module);
    spec.rank_patterns.emplace_back(pattern, rank);
    spec.alpha_patterns.emplace_back(pattern, static_cast<double>(rank));
  }
  return spec;
}

// Makes the initializer an input whose default it is. Of a linear layer's A and B: with any rank, by default none.
void make_input(Graph* graph, const AdapterPart& part) {
  Value* value = graph->find(part.tensor);
  Dims dims = *value->type().dims;
  const bool is_a = part.part == parts::kA;
  if (is_a || part.part == parts::kB) {
    Shape shape = value->type().shape();
    if (shape.size() == 2) {
      const size_t axis = is_a ? 0 : 1;
      shape[axis] = 0;
      dims[axis] = Dim(module_of_part(part) + ".rank");
    }
    graph->set_initializer(value, Tensor(value->dtype(), shape));
  } else if (part.part == parts::kScale || part.part == parts::kInputScale) {
    graph->set_initializer(value, Tensor::full(value->dtype(), value->type().shape(), 1));
  }
  graph->add_input(value->name(), {value->dtype(), dims});
}

// result + B A x of layers that have one weight, without types: a file may have operators that nothing here knows.
void add_beside(Graph* graph, const std::vector<LinearLayer>& layers, const std::pair<AdapterPart, AdapterPart>& parts,
                DType dtype) {
  const auto& [a, b] = parts;
  const LinearLayer& first = layers[0];
  for (const auto& [part, shape] : {std::pair(&a, Shape{1, first.in()}), std::pair(&b, Shape{first.out(), 1})}) {
    if (graph->find(part->tensor)) fail("the model has a value '", part->tensor, "' already");
    graph->add_initializer(part->tensor, Tensor(dtype, shape));
    make_input(graph, *part);
  }
  for (const LinearLayer& layer : layers) {
    Value* result = layer.result();
    Node* before = result->producer()->next();
    const std::string module = module_of_part(a);
    const auto add = [&](const char* op, const std::vector<Value*>& inputs) {
      return graph->add_node(op, inputs, {graph->unique_name(module + "/lora")}, "", before);
    };
    const auto cast = [&](Value* x, DType to) {
      if (layer.weight->dtype() == dtype) return x;
      Node* node = add("Cast", {x});
      node->set_attr("to", static_cast<int64_t>(to));
      return node->output();
    };
    const auto turned = [&](const AdapterPart& part) {
      Node* node = add("Transpose", {graph->find(part.tensor)});
      node->set_attr("perm", std::vector<int64_t>{1, 0});
      return node->output();
    };
    Value* low = add("MatMul", {cast(layer.node->input(0), dtype), turned(a)})->output();
    Value* change = cast(add("MatMul", {low, turned(b)})->output(), layer.weight->dtype());
    Node* sum = add("Add", {result, change});
    sum->output()->set_type(result->type());
    put_after(result, sum->output());
  }
}

}  // namespace

std::vector<std::string> serve_adapters(Model* inference, const std::vector<std::string>& besides) {
  const AdapterSpec own = parse_adapter_text(inference->metadata(kAdapter));
  if (own.method.empty()) fail("the model", kNoAdapters);
  if (own.method == "lora") {
    const AdapterSpec spec = unscaled_spec(*inference, own);
    take_out_adapters(inference);
    add_adapters(spec, 0).run(*inference);
  }
  Graph* graph = inference->graph.get();
  std::vector<std::string> names;
  for (const AdapterPart& part : adapter_parts(*inference)) {
    if (!graph->find(part.tensor)) continue;
    make_input(graph, part);
    names.push_back(part.tensor);
  }
  for (const std::string& name : besides) {
    Value* value = graph->find(name);
    if (!value || !value->is_initializer() || graph->is_input(value)) continue;
    graph->add_input(name, value->type());
    names.push_back(name);
  }
  forget_adapters(inference);
  auto* properties = inference->shell().mutable_metadata_props();
  for (int i = properties->size() - 1; i >= 0; --i) {
    if (properties->Get(i).key() == kAdapted) properties->DeleteSubrange(i, 1);
  }
  return names;
}

std::vector<std::string> serve_adapters_beside(const Model& training,
                                               const std::multimap<std::string, std::string>& tensors_of,
                                               const std::string& source, Model* served) {
  const AdapterSpec spec = parse_adapter_text(training.metadata(kAdapter));
  if (spec.method != "lora" || spec.dora)
    fail("--into takes adapters of --lora as inputs, without dora: leave out --adapter-inputs, and add --merge");
  if (const std::vector<std::string> besides = trained_besides(training); !besides.empty())
    fail("'", besides[0], "' was trained beside the adapters, and is no input of ", source,
         ": freeze it, or add --merge ", "in the place of --adapter-inputs");
  std::vector<std::string> names;
  std::map<std::string, std::string> weights;  // by the tensors of `served`
  for (const auto& [weight, tensor] : tensors_of) {
    if (const auto [known, is_new] = weights.emplace(tensor, weight); !is_new)
      fail_as(ErrorCode::kWeightsMisfit, source, ": '", tensor, "' holds '", known->second, "' and '", weight,
              "', which are equal: nothing tells beside which of them an adapter is");
  }
  std::map<std::string, std::vector<LinearLayer>> layers;
  for (const LinearLayer& layer : LinearLayers(*served).all()) {
    if (const auto weight = weights.find(layer.weight->name()); weight != weights.end() && !layer.is_convolution())
      layers[weight->second].push_back(layer);
  }
  for (const AdapterPart& part : adapter_parts(training)) {
    const Value* a = training.graph->find(part.tensor);
    if (part.part != parts::kA || !a) continue;
    const std::string b = module_of_part(part) + "." + parts::kB + ".weight";
    if (!layers.count(part.weight) || a->rank() != 2)
      fail_as(ErrorCode::kWeightsMisfit, source, " has no product with '", part.weight,
              "' alone, beside which the adapter '", part.tensor, "' could be");
    add_beside(served->graph.get(), layers.at(part.weight), {part, {b, parts::kB, part.weight}}, a->dtype());
    names.insert(names.end(), {part.tensor, b});
  }
  return names;
}

std::vector<std::string> trained_besides(const Model& training) {
  std::unordered_set<std::string> known;
  for (const AdapterPart& part : adapter_parts(training)) known.insert(part.tensor);
  std::vector<std::string> names;
  for (const EntryPoint& entry : training.entry_points) {
    for (const Binding& binding : entry.update_bindings) {
      const Value* state = binding.state;
      if (&state->graph() != training.graph.get() || state->role() || !known.insert(state->name()).second) continue;
      names.push_back(state->name());
    }
  }
  return names;
}

std::map<std::string, Tensor> served_values(const Model& training) {
  const AdapterSpec spec = parse_adapter_text(training.metadata(kAdapter));
  if (spec.method.empty()) fail("the model", kNoAdapters);
  std::map<std::string, Tensor> values;
  for (const AdapterPart& part : adapter_parts(training)) {
    const Value* value = training.graph->find(part.tensor);
    if (!value || !value->is_initializer()) continue;
    Tensor contents = contents_of(*value);
    if (part.part == parts::kB && spec.method == "lora") {
      const double scale = spec.scale(module_of_part(part), contents.shape()[1]);
      contents = contents.clone();
      for (int64_t i = 0; i < contents.size(); ++i) contents.set(i, scale * contents.at(i));
    }
    values[part.tensor] = contents;
  }
  for (const std::string& name : trained_besides(training)) values[name] = contents_of(*training.graph->find(name));
  return values;
}

}  // namespace onnx_train
