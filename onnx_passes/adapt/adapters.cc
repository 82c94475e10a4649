#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/model/select.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/model/weight_roles.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

// Whether a pattern names the layer: its module, its weight, or the last parts of its module, as PEFT's target_modules.
bool is_target(const LinearLayer& layer, const std::string& pattern, bool exact) {
  const std::string& module = layer.module;
  if (exact) return module == pattern;
  return names_module(pattern, module) || matches(pattern, layer.weight_name);
}

// The layers after which there is no other one.
Marks<Node> last_layers(const Model& model, const std::vector<LinearLayer>& layers) {
  Marks<Node> all, last;
  for (const LinearLayer& layer : layers) all.insert(layer.node);
  Marks<Value> read_by_layers;  // at once or later
  for (const Node* node = model.graph->last(); node; node = node->previous()) {
    bool feeds = false;
    for (const Value* output : node->outputs()) feeds = feeds || (output && read_by_layers.contains(output));
    if (all.contains(node) && !feeds) last.insert(node);
    if (!feeds && !all.contains(node)) continue;
    for_each_input(*node, [&](const Value* input) { read_by_layers.insert(input); });
  }
  return last;
}

class AdapterInsertion {
 public:
  AdapterInsertion(Model* model, const AdapterSpec& spec, uint64_t seed)
      : model_(*model),
        graph_(*model->graph),
        spec_(spec),
        seed_(seed),
        layers_(LinearLayers(*model, /*integers=*/true).all()) {}

  void run() {
    if (has_adapters(model_)) {
      fail("[Adapter] the model has adapters already (", model_.metadata(kAdapter),
           "): fold them into its weights first, with onnx-train export --merge");
    }
    if (spec_.method == "bitfit") {
      train_biases();
    } else if (spec_.method == "ia3") {
      for (const LinearLayer& layer : targets(spec_.targets)) scale_output(layer);
      for (const LinearLayer& layer : targets(spec_.feedforward)) scale_input(layer);
    } else {
      const auto layers = spec_.targets.empty() ? all_but_the_last() : targets(spec_.targets);
      expect_patterns_of(layers);
      for (const LinearLayer& layer : layers) add_lora(layer);
    }
    model_.set_metadata(kAdapter, to_string(spec_));
    const auto name = [](const std::string& text) { return text; };
    add_adapted_note(
        &model_, concat(to_string(spec_), ": on ", changed_.size(),
                        spec_.method == "bitfit" ? " biases (" : " layers (", first_few(changed_, size_t{4}, name),
                        "), ", parameters_, " parameters; all else is frozen but new heads and what --train names"));
  }

 private:
  static std::string option(const AdapterSpec& spec) { return "--" + spec.method + " targets"; }

  std::vector<LinearLayer> all_but_the_last() const {
    const Marks<Node> heads = last_layers(model_, layers_);
    std::vector<LinearLayer> found;
    for (const LinearLayer& layer : layers_) {
      const bool is_head =
          heads.contains(layer.node) || !model_.metadata(std::string(kHeadRecord) + layer.weight->name()).empty();
      if (!is_head && layer.groups == 1) found.push_back(layer);
    }
    if (found.empty()) {
      fail("[Adapter] the model has no linear layer but its head: name what is to have an adapter, targets=PATTERNS");
    }
    return found;
  }

  std::vector<LinearLayer> targets(const std::vector<std::string>& patterns) const {
    std::unordered_set<const Node*> chosen;
    for (const std::string& pattern : patterns) {
      bool any = false;
      for (const LinearLayer& layer : layers_) {
        if (!is_target(layer, pattern, spec_.exact)) continue;
        any = true;
        chosen.insert(layer.node);
        if (layer.groups != 1 && spec_.method == "lora") {
          fail("[Adapter] '", pattern, "' names ", layer.node->label(), ", a convolution in ", layer.groups,
               " groups, which cannot have an adapter of low rank");
        }
      }
      if (!any) fail_unmatched(pattern);
    }
    std::vector<LinearLayer> found;
    std::copy_if(layers_.begin(), layers_.end(), std::back_inserter(found),
                 [&](const LinearLayer& layer) { return chosen.count(layer.node) > 0; });
    return found;
  }

  // A rank or an alpha of its own is of a layer that has an adapter.
  void expect_patterns_of(const std::vector<LinearLayer>& layers) const {
    std::vector<std::string> modules;
    for (const LinearLayer& layer : layers) modules.push_back(layer.module);
    const auto expect = [&](const auto& patterns, const char* key) {
      for (const auto& [pattern, number] : patterns) {
        if (std::any_of(modules.begin(), modules.end(), [&, p = pattern](const auto& m) { return names_module(p, m); }))
          continue;
        const auto name = [](const std::string& module) { return concat("'", module, "'"); };
        fail("--lora ", key, pattern, ": '", pattern, "' names none of the ", modules.size(),
             " layers that have an adapter: ", first_few(modules, size_t{3}, name), did_you_mean(pattern, modules));
      }
    };
    expect(spec_.rank_patterns, "rank.");
    expect(spec_.alpha_patterns, "alpha.");
  }

  [[noreturn]] void fail_unmatched(const std::string& pattern) const {
    std::vector<std::string> modules;
    for (const LinearLayer& layer : layers_) modules.push_back(layer.module);
    fail_if_embedding(pattern);
    const auto name = [](const std::string& module) { return concat("'", module, "'"); };
    fail(option(spec_), ": '", pattern, "' matches none of the ", modules.size(), " linear layers",
         modules.empty() ? "" : concat("; they are called ", first_few(modules, size_t{3}, name)),
         did_you_mean(pattern, modules));
  }

  void fail_if_embedding(const std::string& pattern) const {
    for (const Node* node = graph_.first(); node; node = node->next()) {
      const Value* table = node->is("Gather") ? node->input(0) : nullptr;
      if (!table || !table->is_initializer() || !is_float(table->dtype())) continue;
      const std::string told = name_at_reader(*table, *node), name = told.empty() ? table->name() : told;
      if (!names_module(pattern, module_of(name)) && !matches(pattern, name)) continue;
      const auto head = std::find_if(layers_.begin(), layers_.end(), [&](const LinearLayer& layer) {
        return layer.weight == table && !names_module(pattern, layer.module);
      });
      fail(option(spec_), ": '", pattern, "' is an embedding, ", node->label(),
           ", and adapters are beside linear layers: train it whole, --train ", table->name(),
           head == layers_.end() ? "" : concat(", or name the layer that shares its weight, '", head->module, "'"));
    }
  }

  // The parameter `<module>.<part>`, made at the first layer that has this weight.
  Value* parameter(const LinearLayer& layer, const char* part, const char* suffix, const Tensor& initial) {
    const std::string name = layer.module + "." + part + suffix;
    if (Value* known = graph_.find(name)) {
      const auto made = made_.find(known);
      if (made != made_.end() && made->second == layer.weight) return known;
      fail("[Adapter] the model has a value '", name, "' already: rename it, or leave the layer out of the targets");
    }
    Value* value = graph_.add_initializer(name, make_parameter(name, initial));
    made_[value] = layer.weight;
    parameters_ += initial.size();
    record_part(&model_, {name, part, layer.weight->name()});
    return value;
  }

  void note(const LinearLayer& layer) {
    if (std::find(changed_.begin(), changed_.end(), layer.module) == changed_.end()) changed_.push_back(layer.module);
  }

  // ---- LoRA: result + s B A dropout(x), and DoRA

  void add_lora(const LinearLayer& layer) {
    Value* result = layer.result();
    const bool convolution = layer.is_convolution();
    Builder b(&graph_, result->producer()->next());
    b.set_name(layer.module + "/lora");
    const Shape full = layer.weight->type().shape();
    const int64_t rank = spec_.rank_of(layer.module);
    Shape a_shape = {rank, layer.in()}, b_shape = {layer.out(), rank};
    for (size_t i = 2; i < full.size(); ++i) {
      a_shape.push_back(full[i]);
      b_shape.push_back(1);
    }
    const DType dtype = layer.weight->dtype();
    const std::string a_name = layer.module + "." + parts::kA + ".weight";
    const Tensor initial = draw_uniform(dtype, a_shape, 1 / std::sqrt(layer.fan_in()), seed_, a_name);
    const Var down = b.var(parameter(layer, parts::kA, ".weight", initial));
    const Var up = b.var(parameter(layer, parts::kB, ".weight", Tensor(dtype, b_shape)));
    Var x = b.var(layer.node->input(0));
    if (spec_.dropout > 0) x = b.op("Dropout", {x, b.scalar(DType::kFloat, spec_.dropout)});
    const Var product = convolution ? b.like(*layer.node, {x, down})[0] : matmul(x, transpose(down, {1, 0}));
    const double scale = spec_.scale(layer.module, rank);
    const Var low = scale == 1 ? product : product * scale;
    const Var change = convolution ? b.op("Conv", {low, up}) : matmul(low, transpose(up, {1, 0}));
    if (spec_.dora) {
      add_dora(&b, layer, x, down, up, change);
    } else {
      put_after(result, (b.var(result) + change).value());
    }
    note(layer);
  }

  // result + (c - 1) W dropout(x) + c s B A dropout(x), c = m / |W + s B A|, as PEFT computes it.
  void add_dora(Builder* builder, const LinearLayer& layer, Var x, Var down, Var up, Var change) {
    Builder& b = *builder;
    b.set_name(layer.module + "/dora");
    Value* result = layer.result();
    const Tensor initial = magnitude_of(layer, weight_of(layer));
    const Var magnitude = b.var(parameter(layer, parts::kMagnitude, "", initial));
    Var ratio = magnitude / call(b, "StopGradient", {norm_with(&b, layer, down, up)});
    if (layer.is_convolution()) ratio = over_places(&b, layer, ratio);
    Var product = b.var(result);
    if (spec_.dropout > 0) {
      // Its weight is none of a layer, which would have an adapter of its own.
      product = b.like(*layer.node, {x, call(b, "StopGradient", {b.var(layer.node->input(1))})})[0];
    } else if (const Var bias = added_to(&b, layer)) {
      product = product - bias;
    }
    const Var own = product * (ratio - 1.0), low = change * ratio;
    Node* reads_result = spec_.dropout > 0           ? nullptr
                         : product.value() == result ? own.value()->producer()
                                                     : product.value()->producer();
    put_after(result, (b.var(result) + (own + low)).value());
    if (reads_result) reads_result->set_input(0, result);
  }

  // A number for each channel [out] as [out, 1, ..], for all places of a convolution's result.
  static Var over_places(Builder* b, const LinearLayer& layer, Var channels) {
    Shape shape = {layer.out()};
    for (int64_t i = 2; i < layer.weight->rank(); ++i) shape.push_back(1);
    return reshape(channels, b->ints(shape));
  }

  // |W + s B A| of each output.
  Var norm_with(Builder* b, const LinearLayer& layer, Var down, Var up) const {
    Var weight = b->var(layer.weight);
    if (layer.factor != 1) weight = weight * layer.factor;
    Var low;
    std::vector<int64_t> axes = {layer.out_first ? 1 : 0};
    if (layer.is_convolution()) {
      up = flatten_to_2d(up, 1), down = flatten_to_2d(down, 1);
      low = reshape(matmul(up, down), b->ints(layer.weight->type().shape()));
      for (int64_t i = 2; i < layer.weight->rank(); ++i) axes.push_back(i);
    } else if (layer.out_first) {
      low = matmul(up, down);
    } else {
      up = transpose(up, {1, 0}), down = transpose(down, {1, 0});
      low = matmul(down, up);
    }
    const double scale = spec_.scale(layer.module, spec_.rank_of(layer.module));
    return b->op("ReduceL2", {weight + low * scale, b->ints(axes)}, {{"keepdims", 0}});
  }

  // What the layer adds to its product; Var() for nothing.
  static Var added_to(Builder* b, const LinearLayer& layer) {
    if (layer.adds_bias) return b->var(layer.bias);
    Value* input = layer.node->input(2);
    if (!input) return {};
    Var bias = b->var(input);
    if (layer.is_convolution()) return over_places(b, layer, bias);
    const float beta = layer.node->attr("beta", 1.0f);
    return beta == 1 ? bias : bias * static_cast<double>(beta);
  }

  // ---- IA3

  Tensor ones(const LinearLayer& layer, int64_t size) const {
    Shape shape = {size};
    for (int64_t i = 2; i < layer.weight->rank(); ++i) shape.push_back(1);
    return Tensor::full(layer.weight->dtype(), shape, 1);
  }

  void scale_output(const LinearLayer& layer) {
    Value* result = layer.result();
    Builder b(&graph_, result->producer()->next());
    b.set_name(layer.module + "/ia3");
    const Var scale = b.var(parameter(layer, parts::kScale, "", ones(layer, layer.out())));
    put_after(result, (b.var(result) * scale).value());
    note(layer);
  }

  void scale_input(const LinearLayer& layer) {
    Builder b(&graph_, layer.node);
    b.set_name(layer.module + "/ia3");
    const Var scale = b.var(parameter(layer, parts::kInputScale, "", ones(layer, layer.in() * layer.groups)));
    layer.node->set_input(0, (b.var(layer.node->input(0)) * scale).value());
    note(layer);
  }

  // ---- BitFit

  void train_biases() {
    const auto constants = constants_of(model_);
    for (Value* value : std::vector<Value*>(graph_.initializers())) {
      if (!is_float(value->dtype()) || value->is_constant() || constants.count(value->name())) continue;
      if (is_running_statistic(value) || use_of(*value).role != WeightRole::kBias) continue;
      record_part(&model_, {value->name(), parts::kBias, value->name()});
      parameters_ += num_elements(value->type().shape());
      changed_.push_back(value->name());
    }
    if (changed_.empty()) fail("[Adapter] --bitfit trains biases, and the model has none");
  }

  Model& model_;
  Graph& graph_;
  const AdapterSpec& spec_;
  const uint64_t seed_;
  const std::vector<LinearLayer> layers_;
  std::unordered_map<const Value*, const Value*> made_;  // parameters -> weights
  std::vector<std::string> changed_;
  int64_t parameters_ = 0;
};

}  // namespace

Pass add_adapters(const AdapterSpec& spec, uint64_t seed) {
  return {"add_adapters", [spec, seed](Model& model) {
            AdapterInsertion(&model, spec, seed).run();
            return true;
          }};
}

}  // namespace onnx_train
