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

// A product of a served model, beside which an adapter is to be.
struct ServedProduct {
  Value *x, *result;
  int64_t in, out;
  DType dtype;  // of both
};
using ServedProducts = std::map<std::string, std::vector<ServedProduct>>;  // by the weight in the training model

bool have_equal_numbers(const Tensor& a, const Tensor& b) {
  bool equal = a.size() == b.size();
  for (int64_t i = 0; equal && i < a.size(); ++i) equal = a.at(i) == b.at(i);
  return equal;
}

// Calls f with each node of the graph and of the graphs in it, such as the branches of an If.
template <typename F>
void for_each_node(const Graph& graph, const F& f) {
  for (Node* node = graph.first(); node; node = node->next()) {
    f(node);
    for (const auto& subgraph : node->subgraphs()) for_each_node(*subgraph.graph, f);
  }
}

// Adds products with integers, which importing has made of MatMulNBits: those with the names and the scales of the
// file.
void find_products_of_bits(const Model& training, const Graph& served, ServedProducts* products) {
  for (const AdapterPart& part : adapter_parts(training)) {
    const Value* floats = training.graph->find(part.weight);
    const Node* node = part.part == parts::kA && floats ? floats->producer() : nullptr;
    if (!node || !node->is("DequantizeLinear") || !node->input(0)->is_initializer() ||
        !node->input(1)->is_initializer())
      continue;
    const Shape shape = constant_shape(*node->input(0));
    for_each_node(served, [&](Node* bits) {
      if (!bits->is("MatMulNBits", "com.microsoft") || bits->num_inputs() < 3 || !bits->input(2)->is_initializer())
        return;
      const bool is_it = node->input(0)->name() == bits->input(1)->name() + "_quantized" && shape.size() == 2 &&
                         bits->attr("N", 0) == shape[0] && bits->attr("K", 0) == shape[1] &&
                         have_equal_numbers(contents_of(*node->input(1)), contents_of(*bits->input(2)));
      if (is_it)
        (*products)[part.weight].push_back(
            {bits->input(0), bits->output(), shape[1], shape[0], bits->input(2)->dtype()});
    });
  }
}

ServedProducts find_products(const Model& training, const std::map<std::string, std::string>& weights,
                             const Model& served) {
  ServedProducts products;
  const LinearLayers layers(served);
  for_each_node(*served.graph, [&](Node* node) {
    const auto layer = layers.of(node);
    const auto weight = layer ? weights.find(layer->weight->name()) : weights.end();
    if (weight == weights.end() || layer->is_convolution()) return;
    products[weight->second].push_back(
        {node->input(0), layer->result(), layer->in(), layer->out(), layer->weight->dtype()});
  });
  find_products_of_bits(training, *served.graph, &products);
  return products;
}

// The weights by the tensors that hold them. Of equal ones, as a table and the head that an exporter has untied from it
// are, the tensor's name tells, or nothing where none of them has an adapter.
std::map<std::string, std::string> weights_of_tensors(const Model& training,
                                                      const std::multimap<std::string, std::string>& tensors_of,
                                                      const std::string& source) {
  std::unordered_set<std::string> adapted;
  for (const AdapterPart& part : adapter_parts(training)) adapted.insert(part.weight);
  std::map<std::string, std::string> weights;
  for (const auto& [weight, tensor] : tensors_of) {
    if (weight == tensor) weights.emplace(tensor, weight);
  }
  for (const auto& [weight, tensor] : tensors_of) {
    const auto [known, is_new] = weights.emplace(tensor, weight);
    const bool is_told = is_new || known->second == tensor;
    if (!is_told && (adapted.count(weight) || adapted.count(known->second)))
      fail_as(ErrorCode::kWeightsMisfit, source, ": '", tensor, "' holds '", known->second, "' and '", weight,
              "', which are equal: nothing tells beside which of them an adapter is");
  }
  return weights;
}

// result + B A x of products that have one weight, without types: a file may have operators that nothing here knows.
void add_beside(Graph* graph, const std::vector<ServedProduct>& products, const AdapterPart& a, const AdapterPart& b,
                DType dtype) {
  const ServedProduct& first = products[0];
  for (const auto& [part, shape] : {std::pair(&a, Shape{1, first.in}), std::pair(&b, Shape{first.out, 1})}) {
    if (graph->find(part->tensor)) fail("the model has a value '", part->tensor, "' already");
    graph->add_initializer(part->tensor, Tensor(dtype, shape));
    make_input(graph, *part);
  }
  for (const ServedProduct& product : products) {
    Graph& own = product.result->graph();
    Node* before = product.result->producer()->next();
    const auto add = [&](const char* op, const std::vector<Value*>& inputs) {
      return own.add_node(op, inputs, {own.unique_name(module_of_part(a) + "/lora")}, "", before);
    };
    const auto cast = [&](Value* x, DType to) {
      if (product.dtype == dtype) return x;
      Node* node = add("Cast", {x});
      node->set_attr("to", static_cast<int64_t>(to));
      return node->output();
    };
    const auto turned = [&](const AdapterPart& part) {
      Node* node = add("Transpose", {graph->find(part.tensor)});
      node->set_attr("perm", std::vector<int64_t>{1, 0});
      return node->output();
    };
    Value* low = add("MatMul", {cast(product.x, dtype), turned(a)})->output();
    Value* change = cast(add("MatMul", {low, turned(b)})->output(), product.dtype);
    Node* sum = add("Add", {product.result, change});
    sum->output()->set_type(product.result->type());
    put_after(product.result, sum->output());
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
  const ServedProducts products = find_products(training, weights_of_tensors(training, tensors_of, source), *served);
  for (const AdapterPart& part : adapter_parts(training)) {
    const Value* a = training.graph->find(part.tensor);
    if (part.part != parts::kA || !a) continue;
    const auto found = products.find(part.weight);
    if (found == products.end() || a->rank() != 2 || a->type().shape()[1] != found->second[0].in)
      fail_as(ErrorCode::kWeightsMisfit, source, " has no product with '", part.weight,
              "' alone, beside which the adapter '", part.tensor, "' could be");
    const std::string b = module_of_part(part) + "." + parts::kB + ".weight";
    add_beside(served->graph.get(), found->second, part, {b, parts::kB, part.weight}, a->dtype());
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
