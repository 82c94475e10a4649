#include <algorithm>
#include <map>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/model/weight_origin.h"

namespace onnx_train {
namespace {

// The parts of the adapter beside one weight, by what they are.
using Parts = std::map<std::string, const Value*>;

class Merge {
 public:
  explicit Merge(Model* model)
      : model_(*model), graph_(*model->graph), spec_(parse_adapter_text(model->metadata(kAdapter))) {}

  MergedAdapters run() {
    std::vector<Folded> folded;
    const auto layers = layers_of_weights(/*integers=*/false);
    const auto adapters = parts_of_weights();
    for (const auto& [weight, adapter] : adapters) folded.push_back(fold(adapter, layers_of(weight, layers)));
    remove_parts();
    for (const Folded& each : folded) replace(*each.layers, each.weight, each.bias);
    graph_.remove_unused_initializers();
    forget_adapters(&model_);
    merged_.layers = static_cast<int>(adapters.size());
    return merged_;
  }

  // The weights stay as they are.
  void take_out() {
    const auto layers = layers_of_weights(/*integers=*/true);
    for (const auto& [weight, adapter] : parts_of_weights()) {
      for (const LinearLayer& layer : layers_of(weight, layers)) {
        const auto magnitude = adapter.find(parts::kMagnitude), up = adapter.find(parts::kB);
        if (up != adapter.end()) drop(layer, magnitude == adapter.end() ? *up->second : *magnitude->second);
      }
    }
    remove_parts();
    graph_.remove_unused_initializers();
    forget_adapters(&model_);
  }

 private:
  using Layers = std::map<std::string, std::vector<LinearLayer>>;  // by the name of their weight

  std::map<std::string, Parts> parts_of_weights() const {
    std::map<std::string, Parts> by_weight;
    for (const AdapterPart& part : adapter_parts(model_)) {
      Value* tensor = graph_.find(part.tensor);
      if (part.part != parts::kBias && tensor) by_weight[part.weight][part.part] = tensor;
    }
    return by_weight;
  }

  Layers layers_of_weights(bool integers) const {
    Layers layers;
    for (const LinearLayer& layer : LinearLayers(model_, integers).all()) layers[layer.weight->name()].push_back(layer);
    return layers;
  }

  static const std::vector<LinearLayer>& layers_of(const std::string& weight, const Layers& layers) {
    const auto found = layers.find(weight);
    if (found == layers.end()) fail("[Adapter] no layer reads the weight '", weight, "' that has an adapter");
    return found->second;
  }

  // Adapters may read the weights, too.
  void remove_parts() {
    std::unordered_set<const Value*> read;
    for (const Value* input : graph_.inputs()) {
      if (!input->uses().empty()) read.insert(input);
    }
    remove_unneeded(&model_, read);
  }

  struct Folded {
    const std::vector<LinearLayer>* layers;
    Tensor weight, bias;  // an empty bias: as it was
  };

  Folded fold(const Parts& adapter, const std::vector<LinearLayer>& layers) {
    const auto part = [&](const char* name) {
      const auto found = adapter.find(name);
      return found == adapter.end() ? nullptr : found->second;
    };
    const LinearLayer& first = layers[0];
    const Value* magnitude = part(parts::kMagnitude);
    expect_shapes(first, part(parts::kA), part(parts::kB), part(parts::kScale), part(parts::kInputScale), magnitude);
    const Tensor base = contents_of(*first.weight);
    Tensor weight = base.cast(DType::kDouble).clone();
    Tensor bias;
    if (const Value* a = part(parts::kA), *b = part(parts::kB); a && b) {
      add_product(first, *a, *b, &weight);
      if (magnitude) rescale(first, contents_of(*magnitude), &weight);
      for (const LinearLayer& layer : layers) drop(layer, magnitude ? *magnitude : *b);
    }
    if (const Value* scale = part(parts::kInputScale)) {
      const Tensor l = contents_of(*scale);
      for_each_element(first, [&](int64_t at, int64_t out, int64_t in) {
        const int64_t per_group = first.out() / first.groups;
        weight.set(at, weight.at(at) * l.at(in + out / per_group * first.in()));
      });
      for (const LinearLayer& layer : layers) drop_input_scale(layer, *scale);
    }
    if (const Value* scale = part(parts::kScale)) {
      const Tensor l = contents_of(*scale);
      for_each_element(first, [&](int64_t at, int64_t out, int64_t) { weight.set(at, weight.at(at) * l.at(out)); });
      if (first.bias) bias = scaled_bias(first, l);
      for (const LinearLayer& layer : layers) drop(layer, *scale);
    }
    return {&layers, weight.cast(base.dtype()), bias};
  }

  // Records come from files.
  static void expect_shapes(const LinearLayer& layer, const Value* a, const Value* b, const Value* l, const Value* ff,
                            const Value* magnitude) {
    const auto size = [](const Value* value) { return num_elements(value->type().shape()); };
    const int64_t outs = layer.out(), row = size(layer.weight) / outs;
    bool fits = (a == nullptr) == (b == nullptr);
    if (fits && a) {
      const int64_t rank = a->rank() > 0 ? a->type().shape()[0] : 0;
      fits = rank > 0 && size(a) % rank == 0 && size(a) / rank == row && size(b) % rank == 0 && size(b) / rank == outs;
    }
    fits = fits && (!magnitude || (a && size(magnitude) == outs)) && (!l || size(l) == outs) &&
           (!ff || size(ff) == layer.in() * layer.groups);
    if (!fits) fail("[Adapter] the shapes of the adapter of ", layer.node->label(), " do not fit its weight");
  }

  // weight += s B A, in double: A is [rank, in, sizes..], B [out, rank].
  void add_product(const LinearLayer& layer, const Value& a, const Value& b, Tensor* weight) const {
    const int64_t rank = a.type().shape()[0], outs = layer.out(), row = weight->size() / outs;
    const double scale = spec_.scale(module_of_part({a.name(), parts::kA, ""}), rank) / layer.factor;
    const Tensor wide_a = contents_of(a).cast(DType::kDouble), wide_b = contents_of(b).cast(DType::kDouble);
    std::vector<double> sum(static_cast<size_t>(row));
    for (int64_t out = 0; out < outs; ++out) {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (int64_t r = 0; r < rank; ++r) {
        const double factor = scale * wide_b.data<double>()[out * rank + r];
        const double* from = wide_a.data<double>() + r * row;
        for (int64_t i = 0; i < row; ++i) sum[static_cast<size_t>(i)] += factor * from[i];
      }
      for (int64_t i = 0; i < row; ++i) {
        const int64_t at = layer.out_first ? out * row + i : i * outs + out;
        weight->set(at, weight->at(at) + sum[static_cast<size_t>(i)]);
      }
    }
  }

  // weight m / |weight|, for each output.
  static void rescale(const LinearLayer& layer, const Tensor& magnitude, Tensor* weight) {
    const std::vector<double> norms = norms_of_outputs(layer, *weight);
    for_each_element(layer, [&](int64_t at, int64_t out, int64_t) {
      weight->set(at, weight->at(at) * (magnitude.at(out) / norms[static_cast<size_t>(out)]));
    });
  }

  static Tensor scaled_bias(const LinearLayer& layer, const Tensor& l) {
    Tensor bias = contents_of(*layer.bias).clone();
    const bool fits = bias.size() == layer.out() && layer.bias->uses().size() == 1;
    if (!fits) fail("[Adapter] the bias of ", layer.node->label(), " is not one number for each output, its own");
    for (int64_t i = 0; i < bias.size(); ++i) bias.set(i, bias.at(i) * l.at(i));
    return bias;
  }

  // Whether `value` is `part`, or the result of a node that reads it as its second operand, or DoRA's sum
  // (..) + (..) (part / norm).
  static bool is_made_with(const Value* value, const Value& part) {
    if (value == &part) return true;
    const Node* node = value ? value->producer() : nullptr;
    if (!node || node->num_inputs() < 2 || !node->input(1)) return false;
    const Node* second = node->input(1)->producer();
    const Node* ratio = second && second->is("Mul") && second->input(1) ? second->input(1)->producer() : nullptr;
    if (ratio && ratio->is("Reshape")) ratio = ratio->input(0)->producer();  // of a convolution
    return node->input(1) == &part || (second && second->is("Transpose") && second->input(0) == &part) ||
           (node->is("Add") && ratio && ratio->is("Div") && ratio->input(0) == &part);
  }

  // Whatever reads what `part` makes of the layer's result reads the result.
  void drop(const LinearLayer& layer, const Value& part) {
    Value* base = layer.result();
    for (const Use& use : std::vector<Use>(base->uses())) {
      Node* node = use.node;
      if (node->num_inputs() != 2 || !is_made_with(node->input(1 - use.index), part)) continue;
      Value* changed = node->output();
      const std::string name = changed->name();
      graph_.replace(changed, base);
      if (base->name() == name) return;  // it is an output, and has its name
      graph_.rename(changed, graph_.unique_name(name + "/adapted"));
      graph_.rename(base, name);
      return;
    }
    fail("[Adapter] the adapter of ", layer.node->label(), " is not beside it as it was when the model was built");
  }

  void drop_input_scale(const LinearLayer& layer, const Value& scale) {
    const Node* node = layer.node->input(0)->producer();
    if (!node || node->num_inputs() != 2) return;
    for (int i = 0; i < 2; ++i) {
      if (node->input(i) == &scale) return layer.node->set_input(0, node->input(1 - i));
    }
  }

  void replace(const std::vector<LinearLayer>& layers, const Tensor& weight, const Tensor& bias) {
    Value* old = layers[0].weight;
    size_t readers = 0;
    for (const Use& use : old->uses()) {
      const bool turns = use.node->is("Transpose");
      readers += turns ? use.node->output()->uses().size() : 1;
    }
    if (readers == layers.size()) {
      replace_initializer(&graph_, old, changed_initializer(*old, weight));
    } else {
      untie(layers, weight);
    }
    if (!bias.empty()) replace_initializer(&graph_, layers[0].bias, changed_initializer(*layers[0].bias, bias));
  }

  // Others read the weight as it was. It keeps one of their names for it, so that the layers can have theirs.
  void untie(const std::vector<LinearLayer>& layers, const Tensor& weight) {
    Value* shared = layers[0].weight;
    std::string name = layers[0].weight_name;
    if (name == shared->name()) {
      std::vector<std::string> names = names_of_readers(*shared);
      std::erase_if(names, [&](const std::string& other) { return graph_.find(other) != nullptr; });
      graph_.rename(shared, names.empty() ? graph_.unique_name(name + "/base") : names[0]);
    } else if (graph_.find(name)) {
      name = graph_.unique_name(name + "/merged");
    }
    merged_.untied.emplace_back(name, shared->name());
    Value* own = graph_.add_initializer(name, make_parameter(name, weight));
    for (const LinearLayer& layer : layers) read_own_weight(layer, own);
  }

  Model& model_;
  Graph& graph_;
  AdapterSpec spec_;
  MergedAdapters merged_;
};

}  // namespace

MergedAdapters merge_adapters(Model* model) { return Merge(model).run(); }

void take_out_adapters(Model* model) { Merge(model).take_out(); }

}  // namespace onnx_train
