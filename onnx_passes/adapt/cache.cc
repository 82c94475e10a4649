// Models that were exported to write text, with a cache of keys and values of earlier tokens, are trained without it.
#include <algorithm>
#include <cctype>
#include <unordered_set>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

bool starts_with_word(const std::string& name, std::string_view word) {
  return name.size() > word.size() && std::equal(word.begin(), word.end(), name.begin(), [](char a, char b) {
           return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
         });
}

struct Cache {
  Value* past;
  int64_t axis;  // of earlier tokens
};

constexpr const char* kWayOut =
    ": export the model without a cache (transformers: config.use_cache = False; optimum: --task text-generation)";

// The axis along which a Concat puts the tokens after the earlier ones; else the one open size beside that of the
// batch. -1 where neither tells the axis.
int64_t axis_of_earlier(const Value& past, const Value& tokens) {
  for (const Use& use : past.uses()) {
    if (use.node->is("Concat") && use.index == 0) return normalize_axis(use.node->attr("axis", 0), past.rank());
  }
  const Dims& dims = *past.type().dims;
  int64_t axis = -1;
  for (int64_t i = 0; i < past.rank(); ++i) {
    const Dim& dim = dims[static_cast<size_t>(i)];
    if (dim.known() || dim.same(tokens.type().dims->front())) continue;
    if (axis >= 0) return -1;
    axis = i;
  }
  return axis;
}

// A size of a cache. Where its type leaves that open, as GenAI's builder does with the size of heads ("kv_cache_dim"),
// the tokens that a Concat puts after it have the same.
Dim size_of_cache(const Value& past, int64_t axis) {
  const auto at = static_cast<size_t>(axis);
  const Dim& own = (*past.type().dims)[at];
  for (const Use& use : past.uses()) {
    const Value* later = use.node->is("Concat") && use.index == 0 ? use.node->input(1) : nullptr;
    const bool tells = !own.known() && later && later->has_rank() && later->rank() == past.rank();
    if (tells && (*later->type().dims)[at].known()) return (*later->type().dims)[at];
  }
  return own;
}

std::string note_of(size_t inputs, const std::string& first, size_t outputs) {
  return concat("cache: ", inputs, " inputs of earlier keys and values ('", first, "' ...) are empty, and ", outputs,
                " outputs with those to come are left out");
}

// The size of the heads of a cache that an operator read, from the keys of its own tokens.
Dim size_of_heads(const Graph& graph, const DroppedCache::Kept& kept) {
  const Value* keys = graph.find(kept.keys);
  if (!keys || !keys->has_rank() || keys->rank() < 1 || kept.heads < 1) return {};
  const Dim& size = keys->type().dims->back();
  return size.known() ? Dim(keys->rank() == 3 ? size.value() / kept.heads : size.value()) : Dim();
}

std::vector<Cache> find_caches(const Graph& graph, const Value& tokens, const DroppedCache& before) {
  std::vector<Cache> caches;
  for (Value* input : graph.inputs()) {
    if (!starts_with_word(input->name(), "past") || input->is_initializer() || !is_float(input->dtype())) continue;
    if (!input->has_rank() || input->rank() < 3) continue;
    if (input->name().find("encoder.") != std::string::npos)
      fail("[Cache] '", input->name(), "' holds what a decoder reads of its encoder, not earlier tokens", kWayOut);
    const bool is_of_operator = before.kept.contains(input->name());
    const int64_t axis = is_of_operator ? input->rank() - 2 : axis_of_earlier(*input, tokens);
    if (axis < 0)
      fail("[Cache] '", input->name(), "' ", to_string(input->type()),
           " is a cache of earlier keys and values, and the ",
           "file does not tell which of its axes are earlier tokens", kWayOut);
    caches.push_back({input, axis});
  }
  return caches;
}

// How many earlier tokens the cache holds if the file says one number; 0 for any number.
int64_t fixed_length(const std::vector<Cache>& caches) {
  const Dim& size = (*caches[0].past->type().dims)[static_cast<size_t>(caches[0].axis)];
  return size.known() ? size.value() : 0;
}

// A mask over `earlier` tokens and those of the sample is one over the latter.
void shorten_masks(Graph* graph, const Value& tokens, int64_t earlier) {
  const Dim& length = tokens.type().dims->back();
  for (Value* input : graph->inputs()) {
    if (input == &tokens || input->is_initializer() || !input->has_rank() || input->rank() < 2) continue;
    Dims dims = *input->type().dims;
    const bool is_total = dims.back().known() && (length.known() ? dims.back().value() == earlier + length.value()
                                                                 : dims.back().value() > earlier);
    if (!is_total || starts_with_word(input->name(), "past")) continue;
    dims.back() = length;
    input->set_type({input->dtype(), dims});
  }
}

// The types of a graph whose caches are empty. Those in the file are of a cache of one length.
void infer_anew(Graph* graph, const std::string& first, int64_t earlier) {
  try {
    for (Node* node : graph->nodes()) forget_shapes(node);
    infer_types(graph);
  } catch (const Error& error) {
    fail("[Cache] '", first, "' holds ", earlier,
         " earlier tokens, always, and without them the model does not fit: ", error.what(), kWayOut);
  }
}

}  // namespace

bool has_cache(const Graph& graph) {
  return std::ranges::any_of(graph.inputs(),
                             [](const Value* input) { return starts_with_word(input->name(), "past"); });
}

bool drop_cache(Model* model, const DroppedCache& before) {
  Graph& graph = *model->graph;
  Value* tokens = nullptr;
  for (Value* input : graph.inputs()) {
    if (!tokens && is_integer(input->dtype()) && input->has_rank() && input->rank() == 2) tokens = input;
  }
  if (before.inputs > 0 && before.kept.empty())
    add_adapted_note(model, note_of(before.inputs, before.first, before.outputs));
  if (!tokens) return before.inputs > 0;
  std::vector<Value*> outputs;
  for (Value* output : graph.outputs()) {
    if (!starts_with_word(output->name(), "present")) outputs.push_back(output);
  }
  if (outputs.empty() || (outputs.size() == graph.outputs().size() && before.kept.empty())) return before.inputs > 0;
  const std::vector<Cache> caches = find_caches(graph, *tokens, before);
  if (caches.empty()) return before.inputs > 0;
  const int64_t earlier = fixed_length(caches);
  const std::string first = caches[0].past->name();
  if (const Dim& length = tokens->type().dims->back(); length.known() && length.value() == 1)
    fail("[Cache] '", tokens->name(), "' takes one token at a time, after those of '", first, "'", kWayOut);
  std::unordered_set<const Value*> read;
  for (const Value* input : graph.inputs()) {
    if (!input->uses().empty()) read.insert(input);
  }
  const size_t left_out = graph.outputs().size() - outputs.size();
  Builder b(&graph, graph.first());
  for (const auto& [past, axis] : caches) {
    b.set_name(past->name());
    std::vector<Var> sizes;
    for (int64_t i = 0; i < past->rank(); ++i) {
      Dim size = size_of_cache(*past, i);
      if (const auto kept = before.kept.find(past->name());
          !size.known() && i == past->rank() - 1 && kept != before.kept.end())
        size = size_of_heads(graph, kept->second);
      sizes.push_back(i == axis ? b.ints({0}) : size.known() ? b.ints({size.value()}) : dim(b.var(tokens), 0));
    }
    const Var empty = full(concat(sizes, 0), past->dtype(), 0);
    graph.replace(past, empty.value());
    graph.remove_input(past);
  }
  graph.set_outputs(outputs);
  remove_unneeded(model, read);
  if (earlier > 0) {
    shorten_masks(&graph, *tokens, earlier);
    infer_anew(&graph, first, earlier);
  } else {
    infer_types(&graph);
  }
  add_adapted_note(
      model,
      concat(note_of(caches.size() + before.inputs, first, left_out + before.outputs),
             earlier == 0 ? ""
                          : concat("; the file says that there are ", earlier,
                                   " earlier tokens: a number that its exporter has computed from that, such as the ",
                                   "first position, is as it was")));
  return true;
}

namespace {

// Where an operator has earlier keys and values, and gives those to come.
struct OperatorCache {
  const char *op, *domain;
  std::vector<int> past, present;
};

int64_t number_of(const onnx::NodeProto& node, const char* name) {
  for (const auto& attribute : node.attribute()) {
    if (attribute.name() == name) return attribute.i();
  }
  return 0;
}

// The keys of the node's own tokens, which packed inputs hold between queries and values.
DroppedCache::Kept keys_of(const onnx::NodeProto& node) {
  const int64_t heads = number_of(node, "num_heads"), key_heads = number_of(node, "kv_num_heads");
  const bool is_packed = node.input_size() < 2 || node.input(1).empty();
  if (is_packed) return {node.input_size() > 0 ? node.input(0) : "", heads + 2 * key_heads};
  return {node.input(1), key_heads > 0 ? key_heads : heads};
}

void drop_operator_cache(onnx::NodeProto* node, std::map<std::string, DroppedCache::Kept>* kept,
                         std::unordered_set<std::string>* dropped, const std::unordered_set<std::string>& inputs,
                         const std::unordered_set<std::string>& read) {
  static const std::vector<OperatorCache> rows = {{"GroupQueryAttention", "com.microsoft", {3, 4}, {1, 2}},
                                                  {"MultiHeadAttention", "com.microsoft", {6, 7}, {1, 2}},
                                                  {"Attention", "com.microsoft", {4}, {1}},
                                                  {"Attention", "", {4, 5}, {1, 2}}};
  for (const OperatorCache& row : rows) {
    if (node->op_type() != row.op || node->domain() != row.domain) continue;
    const auto is_input = [&](int i) { return i < node->input_size() && inputs.contains(node->input(i)); };
    const auto is_read = [&](int i) { return i < node->output_size() && read.contains(node->output(i)); };
    if (!std::ranges::all_of(row.past, is_input) || std::ranges::any_of(row.present, is_read)) continue;
    for (const int i : row.past) {
      kept->emplace(node->input(i), keys_of(*node));
      dropped->insert(node->input(i));
      node->set_input(i, "");
    }
    for (const int i : row.present) {
      if (i >= node->output_size()) continue;
      dropped->insert(node->output(i));
      node->set_output(i, "");
    }
  }
}

// Returns how many there were.
template <typename Values>
size_t erase_named(const std::unordered_set<std::string>& names, Values* values) {
  const int before = values->size();
  for (int i = values->size() - 1; i >= 0; --i) {
    if (names.contains(values->Get(i).name())) values->DeleteSubrange(i, 1);
  }
  return static_cast<size_t>(before - values->size());
}

}  // namespace

DroppedCache drop_operator_caches(onnx::GraphProto* graph) {
  DroppedCache cache;
  std::unordered_set<std::string> inputs, read, dropped;
  for (const auto& input : graph->input()) inputs.insert(input.name());
  for (const auto& node : graph->node()) read.insert(node.input().begin(), node.input().end());
  for (auto& node : *graph->mutable_node()) drop_operator_cache(&node, &cache.kept, &dropped, inputs, read);
  // What another node reads, to count earlier tokens, stays an input.
  for (const auto& node : graph->node()) {
    for (const std::string& name : node.input()) dropped.erase(name);
  }
  std::erase_if(cache.kept, [&](const auto& each) { return dropped.contains(each.first); });
  for (const auto& input : graph->input()) {
    if (cache.first.empty() && dropped.contains(input.name())) cache.first = input.name();
  }
  cache.inputs = erase_named(dropped, graph->mutable_input());
  cache.outputs = erase_named(dropped, graph->mutable_output());
  return cache;
}

}  // namespace onnx_train
