#include "onnx_passes/quantization/import_qdq.h"

#include <algorithm>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/model/select.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/quantization/clipped_integers.h"
#include "onnx_passes/quantization/qdq.h"
#include "onnx_passes/quantization/tensors.h"

namespace onnx_train {
namespace {

// ---- 4 bits

// Initializers of the graph may be beside `message`, where they keep their 4 bits; null for other tensors.
int64_t widen_four_bits(onnx::TensorProto* tensor, ModelMessage* message) {
  if (!has_four_bits(*tensor)) return 0;
  const DType dtype = static_cast<DType>(tensor->data_type()) == kInt4 ? DType::kInt8 : DType::kUint8;
  const auto index = message ? reference_of(*tensor) : std::nullopt;
  const Tensor wide = Tensor::unpacked(dtype, {tensor->dims().begin(), tensor->dims().end()},
                                       index ? message->contents.at(*index) : packed_bytes(*tensor));
  tensor->clear_int32_data();
  tensor->set_data_type(static_cast<int>(dtype));
  if (message) {
    put_beside(wide, &message->contents, tensor);
  } else {
    tensor->set_raw_data(wide.data(), wide.bytes());
  }
  auto* entry = tensor->add_metadata_props();
  entry->set_key(kFourBits);
  entry->set_value("1");
  return 1;
}

int64_t widen_four_bits(onnx::GraphProto* graph, ModelMessage* message) {
  int64_t count = 0;
  for (auto& tensor : *graph->mutable_initializer()) count += widen_four_bits(&tensor, message);
  for (auto& node : *graph->mutable_node()) {
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_t()) count += widen_four_bits(attribute.mutable_t(), nullptr);
      if (attribute.has_g()) count += widen_four_bits(attribute.mutable_g(), message);
    }
  }
  return count;
}

// ---- Pairs

// The type of the quantized values, as the file has it.
DType quantized_type(const DType stored, const Value* zero_point) {
  if (!had_four_bits(zero_point)) return stored;
  return stored == DType::kInt8 ? kInt4 : kUint4;
}

bool is_float8(DType dtype) { return dtype == DType::kFloat8E4M3FN || dtype == DType::kFloat8E5M2; }

bool is_zero_or_absent(const Value* zero_point) { return !zero_point || constant_of(zero_point).holds_only(0); }

// Whether `node`, which reads q's integers, takes back what `q` does.
bool dequantizes(const Node& node, const Node& q) {
  if (!node.is("DequantizeLinear") || !are_same(node.input(1), q.input(1))) return false;
  const bool same_zero = are_same(node.input(2), q.input(2)) || (is_float8(q.output()->dtype()) && !node.input(2)) ||
                         (is_zero_or_absent(node.input(2)) && is_zero_or_absent(q.input(2)));
  const bool same_axes = node.attr("axis", 1) == q.attr("axis", 1) || q.input(1)->rank() == 0;
  return same_zero && same_axes && node.attr("block_size", 0) == q.attr("block_size", 0);
}

// x as its quantized values say it: FakeQuantizeInteger with the parameters of `node`, a QuantizeLinear or a
// DequantizeLinear, and the range of its integers. Var() if that cannot be said.
Var fake_quantize(Builder& b, Var x, const Node& node, DType dtype, const std::optional<QuantizedRange>& range) {
  const auto granularity = granularity_of(node);
  if (!granularity || !x.value()->has_rank()) return {};
  const Var split = split_blocks(x, *granularity);
  if (!split) return {};
  const auto parameter = [&](Value* value) {
    return cast(broadcast_parameter(b.var(value), *granularity, x.rank()), x.dtype());
  };
  const Var scale = parameter(node.input(1));
  if (is_float8(dtype)) {
    if (granularity->axis >= 0) return {};
    if (!is_zero_or_absent(node.input(2)) && !is_float8(node.input(2)->dtype())) return {};
    const Var y = call(b, "FakeQuantize", {split, scale}, {{"to", static_cast<int>(dtype)}});
    return join_blocks(y, *granularity, x);
  }
  if (!range) return {};
  const Var zero = node.input(2) ? parameter(node.input(2)) : b.scalar(x.dtype(), 0);
  const Var y = call(b, "FakeQuantizeInteger", {split, scale, zero},
                     {{"low", static_cast<float>(range->low)}, {"high", static_cast<float>(range->high)}});
  return join_blocks(y, *granularity, x);
}

void replace_output(Node* node, Var with) {
  Graph& graph = node->graph();
  const std::string name = node->output()->name();
  graph.replace(node->output(), with.value());
  graph.remove(node);
  if (with.value()->name() != name) graph.claim_name(with.value(), name);
}

// A DequantizeLinear of a QuantizeLinear's integers, and the range to which nodes between the two clip them.
struct Pair {
  Node* dequantize;
  std::optional<QuantizedRange> range;  // nothing for floats of 8 bits
};

// Finds those of q, and the nodes between, each after the one that it reads.
void find_pairs(const Node& q, DType dtype, std::vector<Pair>* pairs, std::vector<Node*>* clips) {
  std::vector<std::pair<const Value*, std::optional<QuantizedRange>>> integers = {{q.output(), range_of(dtype)}};
  for (size_t i = 0; i < integers.size(); ++i) {
    const auto [value, range] = integers[i];
    for (const Use& use : value->uses()) {
      if (&use.node->graph() != &q.graph()) continue;
      if (use.index == 0 && dequantizes(*use.node, q)) {
        pairs->push_back({use.node, range});
      } else if (const auto clipped = range ? clipped_range(use, *range) : std::nullopt) {
        clips->push_back(use.node);
        integers.emplace_back(use.node->output(), clipped);
      }
    }
  }
}

void remove_if_unread(Node* node) {
  if (node->output()->uses().empty() && !node->graph().is_output(node->output())) node->graph().remove(node);
}

// Puts one node in the place of a QuantizeLinear and of each that takes it back.
int64_t fuse_pair(Node* q) {
  Graph& graph = q->graph();
  const DType dtype = quantized_type(q->output()->dtype(), q->input(2));
  std::vector<Pair> pairs;
  std::vector<Node*> clips;
  find_pairs(*q, dtype, &pairs, &clips);
  if (pairs.empty() || !q->input(0)->has_rank()) return 0;
  Builder b(&graph, q);
  const Var x = b.var(q->input(0)), floats = is_float(x.dtype()) ? x : cast(x, q->input(1)->dtype());
  std::vector<std::pair<std::optional<QuantizedRange>, Var>> made;
  int64_t count = 0;
  for (const auto& [dq, range] : pairs) {
    auto same = std::find_if(made.begin(), made.end(), [&r = range](const auto& m) { return m.first == r; });
    if (same == made.end()) {
      b.set_name(dq->output()->name());
      const Var y = fake_quantize(b, floats, *q, dtype, range);
      if (!y) return 0;
      made.emplace_back(range, y);
      same = made.end() - 1;
      ++count;
    }
    Var y = same->second;
    if (dq->output()->dtype() != y.dtype()) y = cast(y, dq->output()->dtype());
    replace_output(dq, y);
  }
  for (auto node = clips.rbegin(); node != clips.rend(); ++node) remove_if_unread(*node);
  remove_if_unread(q);
  return count;
}

}  // namespace

const Value* stored_weight(const Node& node) {
  if (!node.is("DequantizeLinear") || !node.input(0)) return nullptr;
  const Value* stored = node.input(0);
  return stored->is_initializer() && is_integer(stored->dtype()) && !stored->graph().is_input(stored) ? stored
                                                                                                      : nullptr;
}

Tensor dequantized(const Node& node) {
  const auto granularity = granularity_of(node);
  const Tensor scale = constant_of(node.input(1));
  if (!granularity || scale.empty() || (node.input(2) && constant_of(node.input(2)).empty())) return {};
  return dequantize(contents_of(*node.input(0)), scale, constant_of(node.input(2)), *granularity);
}

int64_t widen_four_bits(ModelMessage* message) { return widen_four_bits(message->proto.mutable_graph(), message); }

int64_t fuse_quantization(Graph* graph) {
  int64_t count = 0;
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    Node* const before = node->previous();
    for (const auto& subgraph : node->subgraphs()) count += fuse_quantization(subgraph.graph.get());
    next = node->next();
    if (node->is("DynamicQuantizeLinear") && inline_function(node)) {
      next = before ? before->next() : graph->first();
    } else if (node->is("DequantizeLinear")) {
      fold_clips_of_stored(node);
    } else if (node->is("QuantizeLinear")) {
      // The pair's other half may be the next node, which is removed with it.
      const int64_t fused = fuse_pair(node);
      if (fused > 0) next = before ? before->next() : graph->first();
      count += fused;
    }
  }
  return count;
}

std::vector<const Value*> quantized_weights(const Graph& graph) {
  std::vector<const Value*> found;
  for (const Node* node = graph.first(); node; node = node->next()) {
    const Value* stored = stored_weight(*node);
    if (stored && std::find(found.begin(), found.end(), stored) == found.end()) found.push_back(stored);
  }
  return found;
}

std::string find_quantization(const Graph& graph) {
  for (const Node* node = graph.first(); node; node = node->next()) {
    const bool rounds = (node->domain() == kDomain && node->op().starts_with("FakeQuantize")) ||
                        node->is("QuantizeLinear") || node->is("DequantizeLinear");
    if (rounds) return node->label();
  }
  return "";
}

std::string master_name(const Value& stored) {
  constexpr std::string_view kSuffix = "_quantized";
  const std::string& name = stored.name();
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : name;
}

std::vector<std::string> make_float_masters(Model* model, const std::vector<std::string>& patterns) {
  Graph* graph = model->graph.get();
  std::vector<std::string> made;
  const auto is_named = [&](const std::string& name) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const std::string& pattern) { return pattern == name || matches(pattern, name); });
  };
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    const Value* stored = stored_weight(*node);
    if (!stored) continue;
    const std::string plain = master_name(*stored);
    if (!is_named(plain) && !is_named(stored->name())) continue;
    const Tensor contents = dequantized(*node);
    if (contents.empty())
      fail("[Import] --train names '", stored->name(), "', but the scale of ", node->label(), " is not a constant");
    Value* old = node->input(0);
    const std::string name = is_named(plain) && !graph->find(plain) ? plain : stored->name();
    const DType stored_type = stored->dtype();
    const auto range = range_of_stored(*stored);
    const auto looks_up = [](const Use& use) { return !use.node->is("DequantizeLinear"); };
    if (const auto other = std::ranges::find_if(old->uses(), looks_up); other != old->uses().end())
      fail("[Import] --train names '", name, "', whose integers ", other->node->label(),
           " reads, too: the two would be one weight no more; name other weights");
    if (old->uses().size() == 1) {
      graph->rename(old, graph->unique_name(old->name() + "/stored"));
    } else if (graph->find(name)) {
      fail("[Import] --train names '", name, "', which several nodes dequantize; name other weights");
    }
    Value* master = graph->add_initializer(name, contents);
    Builder b(graph, node);
    b.set_name(node->output()->name());
    const Var y = fake_quantize(b, b.var(master), *node, stored_type, range);
    if (!y) fail("[Import] --train names '", name, "', whose blocks do not divide its size");
    replace_output(node, y);
    made.push_back(name);
  }
  // Nothing else of the model is touched: what nothing reads may be the original of a folded weight.
  if (!made.empty()) graph->remove_unused_initializers();
  return made;
}

}  // namespace onnx_train
