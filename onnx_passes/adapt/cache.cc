// Models that were exported to write text, with a cache of keys and values of earlier tokens, are trained without it.
#include <algorithm>
#include <cctype>
#include <unordered_set>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

bool starts_with_word(const std::string& name, std::string_view word) {
  return name.size() > word.size() && std::equal(word.begin(), word.end(), name.begin(), [](char a, char b) {
           return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
         });
}

// The axis of earlier tokens: the one open size beside that of the batch. -1 where the types tell no such axis.
int64_t axis_of_earlier(const Value& past, const Value& tokens) {
  if (!is_float(past.dtype()) || !past.has_rank() || past.rank() < 3) return -1;
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

}  // namespace

bool drop_cache(Model* model) {
  Graph& graph = *model->graph;
  Value* tokens = nullptr;
  std::vector<std::pair<Value*, int64_t>> caches;  // and their axes
  for (Value* input : graph.inputs()) {
    if (!tokens && is_integer(input->dtype()) && input->has_rank() && input->rank() == 2) tokens = input;
  }
  if (!tokens) return false;
  for (Value* input : graph.inputs()) {
    if (!starts_with_word(input->name(), "past") || input->is_initializer()) continue;
    if (const int64_t axis = axis_of_earlier(*input, *tokens); axis >= 0) caches.emplace_back(input, axis);
  }
  std::vector<Value*> outputs;
  for (Value* output : graph.outputs()) {
    if (!starts_with_word(output->name(), "present")) outputs.push_back(output);
  }
  if (caches.empty() || outputs.empty() || outputs.size() == graph.outputs().size()) return false;
  std::unordered_set<const Value*> read;
  for (const Value* input : graph.inputs()) {
    if (!input->uses().empty()) read.insert(input);
  }
  const size_t left_out = graph.outputs().size() - outputs.size();
  const std::string first = caches[0].first->name();
  Builder b(&graph, graph.first());
  for (const auto& [past, axis] : caches) {
    b.set_name(past->name());
    std::vector<Var> sizes;
    for (int64_t i = 0; i < past->rank(); ++i) {
      const Dim& size = (*past->type().dims)[static_cast<size_t>(i)];
      sizes.push_back(i == axis ? b.ints({0}) : size.known() ? b.ints({size.value()}) : dim(b.var(tokens), 0));
    }
    const Var empty = full(concat(sizes, 0), past->dtype(), 0);
    graph.replace(past, empty.value());
    graph.remove_input(past);
  }
  graph.set_outputs(outputs);
  remove_unneeded(model, read);
  infer_types(&graph);
  add_adapted_note(model, concat("cache: ", caches.size(), " inputs of earlier keys and values ('", first,
                                 "' ...) are empty, and ", left_out, " outputs with those to come are left out"));
  return true;
}

}  // namespace onnx_train
