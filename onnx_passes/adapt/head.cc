#include <algorithm>
#include <charconv>
#include <cmath>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/followers.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/quantization/clipped_integers.h"
#include "onnx_passes/quantization/import_qdq.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

struct HeadChange {
  std::string output;
  int64_t classes = 0;
};

HeadChange parse_head(const std::string& text) {
  constexpr int64_t kMostClasses = int64_t{1} << 31;
  const size_t equals = text.rfind('=');
  HeadChange change{text.substr(0, equals)};
  const char* const end = text.data() + text.size();
  const char* const begin = equals == std::string::npos ? end : text.data() + equals + 1;
  const auto parsed = std::from_chars(begin, end, change.classes);
  const bool valid =
      parsed.ec == std::errc() && parsed.ptr == end && change.classes > 0 && change.classes < kMostClasses;
  if (!valid || change.output.empty()) fail("--head '", text, "': write OUTPUT=N, such as logits=3, with N at least 1");
  return change;
}

Value* find_output(const Graph& graph, const std::string& name, const std::string& option) {
  std::vector<std::string> names;
  for (Value* output : graph.outputs()) {
    if (output->name() == name) return output;
    names.push_back(output->name());
  }
  std::string all;
  for (const std::string& known : names) all += concat(all.empty() ? "'" : ", '", known, "'");
  fail(option, ": the model has no output '", name, "'; it has ", all, did_you_mean(name, names));
}

// Removes the node that computes the value of this name, and what alone it reads, where nothing reads it.
void remove_if_unread(Graph* graph, const std::string& name) {
  const Value* value = graph->find(name);
  Node* const node = value ? value->producer() : nullptr;
  if (!node) return;
  for (const Value* output : node->outputs()) {
    if (output && (!output->uses().empty() || graph->is_output(output))) return;
  }
  std::vector<std::string> inputs;  // removing one may remove another
  for (const Value* input : node->inputs()) inputs.push_back(input ? input->name() : "");
  graph->remove(node);
  for (const std::string& input : inputs) remove_if_unread(graph, input);
}

// The layer's weight or bias with `after` outputs on `axis`.
class NewHead {
 public:
  NewHead(Model* model, const LinearLayer& layer, const HeadChange& change, uint64_t seed)
      : model_(*model), layer_(layer), change_(change), seed_(seed), bound_(1 / std::sqrt(layer.fan_in())) {}

  // The values whose readers change.
  std::vector<Value*> replace() {
    Node* const rounding = layer_.weight->producer();
    const std::vector<std::string> before = {layer_.weight->name(), layer_.bias ? layer_.bias->name() : ""};
    const bool shared = rounding ? layer_.weight->uses().size() > 1 : !is_read_by_one(*layer_.weight);
    const Value* source = rounding ? stored_source(layer_.weight) : layer_.weight;
    if (shared || source->uses().size() > 1) others_read_ = source->name();
    Value* weight = draw(layer_.weight, layer_.out_first ? 0 : 1, shared);
    Value* operand = rounding ? rounded(weight, *rounding) : weight;
    if (shared || rounding) read_own_weight(layer_, operand);
    std::vector<Value*> changed = {weight};
    // One number for all outputs fits any number of them.
    if (layer_.bias && layer_.bias->has_rank() && layer_.bias->rank() > 0 &&
        layer_.bias->type().dims->back() == Dim(layer_.out())) {
      const bool bias_shared = layer_.bias->uses().size() > 1;
      Value* old = layer_.bias;
      const bool read_anew = bias_shared || old->producer();
      Value* bias = draw(old, old->rank() - 1, bias_shared);
      Node* reader = layer_.adds_bias ? layer_.adds_bias : layer_.node;
      for (int i = 0; read_anew && i < reader->num_inputs(); ++i) {
        if (reader->input(i) == old) reader->set_input(i, bias);
      }
      changed.push_back(bias);
    }
    for (const std::string& name : before) remove_if_unread(model_.graph.get(), name);
    return changed;
  }

  bool is_rounded() const { return layer_.weight->producer() != nullptr; }
  // The name of the old weight, if something else reads it; "" otherwise.
  const std::string& others_read() const { return others_read_; }

 private:
  // A new weight is rounded as training for integers does it (qat.h), to as many bits as the old one: the old scales
  // are those of other numbers.
  Value* rounded(Value* weight, const Node& rounding) {
    const Value* stored = stored_weight(rounding);
    const auto range = stored ? range_of_stored(*stored) : std::nullopt;
    const float high = range ? static_cast<float>(range->high) : rounding.attr("high", 127.0f);
    Builder b(model_.graph.get(), layer_.node);
    b.set_name(weight->name() + "/rounded");
    std::vector<int64_t> axes;
    for (int64_t i = 0; i < weight->rank(); ++i) {
      if (i != (layer_.out_first ? 0 : 1)) axes.push_back(i);
    }
    return call(b, "FakeQuantizeWeight", {b.var(weight)}, {{"axes", axes}, {"low", -high}, {"high", high}}).value();
  }

  // The name of what holds the old contents, without what quantizing has added to it.
  static std::string name_of(Value* old) {
    Value* stored = stored_source(old);
    return !stored || stored == old ? old->name() : master_name(*stored);
  }

  Value* draw(Value* old, int64_t axis, bool shared) {
    Graph& graph = *model_.graph;
    Shape shape = old->type().shape();
    shape[static_cast<size_t>(axis)] = change_.classes;
    const bool computed = old->producer() != nullptr;
    std::string name = shared ? graph.unique_name(name_of(old) + "/head") : name_of(old);
    if (computed && !shared && graph.find(name)) {  // what is rounded, which nothing else reads
      Value* source = stored_source(old);
      if (source->name() == name && source->uses().size() == 1)
        graph.rename(source, graph.unique_name(name + "/replaced"));
      name = graph.unique_name(name);
    }
    const Tensor contents = draw_uniform(old->dtype(), shape, bound_, seed_, name);
    const auto message = make_parameter(name, contents);
    if (!shared && !computed) forget_constants(&model_, {old});
    Value* value =
        shared || computed ? graph.add_initializer(name, message) : replace_initializer(&graph, old, message);
    model_.set_metadata(std::string(kHeadRecord) + name, change_.output);
    return value;
  }

  Model& model_;
  const LinearLayer& layer_;
  const HeadChange& change_;
  uint64_t seed_;
  double bound_;
  std::string others_read_;
};

// What the old outputs were rounded to says nothing of the new ones: their values are floats. Returns how many there
// were.
int drop_rounding_of(Graph* graph, Value* result) {
  Marks<Value> dependent;
  dependent.insert(result);
  int dropped = 0;
  for (Node* node : graph->nodes()) {
    bool reads = false;
    for_each_input(*node, [&](const Value* input) { reads = reads || dependent.contains(input); });
    if (!reads) continue;
    if (!node->is("FakeQuantizeInteger", kDomain)) {
      for (Value* output : node->outputs()) {
        if (output) dependent.insert(output);
      }
      continue;
    }
    Value *before = node->input(0), *after = node->output();
    const std::string name = after->name();
    const bool is_output = graph->is_output(after);
    graph->replace(after, before);
    graph->remove(node);
    if (is_output) graph->claim_name(before, name);
    dependent.insert(before);
    ++dropped;
  }
  return dropped;
}

void replace_head(Model* model, const HeadChange& change, uint64_t seed) {
  Value* output = find_output(*model->graph, change.output, "--head");
  const LinearLayer layer = find_head(*model, output);
  if (layer.groups != 1) {
    fail("[Head] ", layer.node->label(), ", the last layer of '", change.output, "', is a convolution in ",
         layer.groups, " groups, whose outputs cannot be counted anew");
  }
  const int64_t before = layer.out();
  const std::string label = layer.node->label();
  const int floats = drop_rounding_of(model->graph.get(), layer.result());
  NewHead head(model, layer, change, seed);
  const bool is_rounded = head.is_rounded();
  const std::vector<Value*> changed = head.replace();
  Followers followers(model->graph.get(), change.output, before, change.classes);
  followers.follow(changed);
  model->graph->remove_unused_initializers();
  std::string names;
  for (const Value* value : changed) names += concat(names.empty() ? "" : ", ", value->name());
  add_adapted_note(
      model,
      concat("head of ", change.output, ": ", label, " has ", change.classes, " outputs in place of ", before,
             "; new: ", names, head.others_read().empty() ? "" : concat(" (others read ", head.others_read(), ", too)"),
             followers.mended().empty() ? "" : "; new shape: " + followers.mended(),
             is_rounded ? "; its weight is rounded in every step as the old one was" : "",
             floats > 0 ? "; its outputs are floats: their old range was that of other classes" : ""));
}

}  // namespace

void add_adapted_note(Model* model, const std::string& line) {
  const std::string before = model->metadata(kAdapted);
  model->set_metadata(kAdapted, before.empty() ? line : before + "\n" + line);
}

Pass replace_heads(const std::vector<std::string>& heads, uint64_t seed) {
  return {"replace_heads", [heads, seed](Model& model) {
            for (const std::string& text : heads) replace_head(&model, parse_head(text), seed);
            return !heads.empty();
          }};
}

}  // namespace onnx_train
