#include "onnx_passes/tokens/token_axes.h"

#include <algorithm>
#include <array>

#include "onnx_passes/inference/copy_graph.h"
#include "onnx_passes/inference/elements.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/tokens/token_rules.h"

namespace onnx_train {

// The graph with numbers for the sizes that are open.
struct TokenFlow::Trial {
  Trial(const Graph& from, int64_t number_of_texts, int64_t number_of_tokens)
      : texts(number_of_texts), tokens(number_of_tokens), graph(from.shared_context()) {
    GraphCopy copy;
    copy.graph(from, &graph);
    for (Value* input : graph.inputs()) {
      if (input->is_initializer()) continue;
      Dims dims = *input->type().dims;
      if (!dims[0].known()) dims[0] = texts;  // one row for all texts stays one
      dims[1] = tokens;
      input->set_type({input->dtype(), dims});
    }
    for (Node* node : graph.nodes()) forget_shapes(node);
    infer_types(&graph);
    const auto record = [&](const Value* value) { copies[value] = copy.of(value); };
    std::ranges::for_each(from.inputs(), record);
    std::ranges::for_each(from.initializers(), record);
    for (const Node* node = from.first(); node; node = node->next()) {
      for (const Value* value : node->outputs()) {
        if (value) record(value);
      }
    }
  }

  const int64_t texts, tokens;
  Graph graph;
  std::unordered_map<const Value*, const Value*> copies;
};

namespace {

constexpr std::array<int64_t, 9> kPrimes = {7, 11, 13, 17, 19, 23, 29, 31, 37};

// Whether a size or a small integer constant is a multiple of the number: axes would be confused.
bool occurs(const Graph& graph, int64_t number) {
  const auto is_multiple = [&](const Dim& d) { return d.known() && d.value() > 0 && d.value() % number == 0; };
  for (const Value* value : graph.initializers()) {
    if (value->has_rank() && std::ranges::any_of(*value->type().dims, is_multiple)) return true;
    if (!is_integer(value->dtype())) continue;
    const auto elements = elements_of(value);
    if (elements && std::ranges::any_of(*elements, is_multiple)) return true;
  }
  for (const Node* node = graph.first(); node; node = node->next()) {
    for (const Value* value : node->outputs()) {
      if (value && value->has_rank() && std::ranges::any_of(*value->type().dims, is_multiple)) return true;
    }
  }
  return false;
}

bool name_has(const Value& value, const char* word) { return value.name().find(word) != std::string::npos; }

bool same_elements(const Value* a, const Value* b) {
  return a && b && a->elements() && b->elements() && *a->elements() == *b->elements() &&
         std::ranges::all_of(*a->elements(), [](const Dim& d) { return d.known(); });
}

}  // namespace

TextInputs text_inputs(const Graph& graph) {
  TextInputs found;
  for (Value* input : graph.inputs()) {
    if (input->is_initializer()) continue;
    const bool is_table = input->has_rank() && input->rank() == 2;
    const bool is_number = is_table && is_integer(input->dtype());
    if (is_table && name_has(*input, "mask")) {
      found.masks.push_back(input);
    } else if (is_number && (name_has(*input, "position") || name_has(*input, "token_type"))) {
      found.by_token.push_back(input);
    } else if (is_number && !found.tokens) {
      found.tokens = input;
    } else {
      fail("[Cache] the model also takes '", input->name(), "' ", to_string(input->type()),
           ", which is no part of a text");
    }
  }
  if (!found.tokens) fail("[Cache] the model has no input int64[batch, tokens]");
  const Dims& dims = *found.tokens->type().dims;
  if (dims[1].known() && (!found.masks.empty() || dims[1].value() < 2))
    fail("[Cache] '", found.tokens->name(), "' is ", to_string(found.tokens->type()),
         ": with a cache it takes any number of tokens; export it with a dynamic axis");
  found.length = dims[1].value();
  return found;
}

TokenFlow::TokenFlow(const Graph& graph, const TextInputs& inputs) : fixed_length_(inputs.length) {
  std::vector<int64_t> numbers;
  for (const int64_t prime : kPrimes) {
    if (!occurs(graph, prime)) numbers.push_back(prime);
  }
  if (numbers.size() < 3) fail("[Cache] the sizes of the model are multiples of all small primes");
  for (size_t i = 0; i < 2; ++i)
    trials_.push_back(std::make_shared<Trial>(graph, numbers[2], fixed_length_ > 0 ? fixed_length_ : numbers[i]));
  for (Value* mask : inputs.masks) axes_[mask] = {.kind = TokenAxes::kPositional};
  for (Value* input : inputs.by_token) axes_[input] = {.kind = TokenAxes::kStream, .tokens = 1};
  axes_[inputs.tokens] = {.kind = TokenAxes::kStream, .tokens = 1};
  TokenRules rules(this);
  for (Node* node = graph.first(); node; node = node->next()) {
    if (!rules.follow(node)) follow_positions(*node);
  }
}

// What differs between two numbers of tokens depends on them, without a stream.
void TokenFlow::follow_positions(const Node& node) {
  bool is_positional = reads_shape_only(node) || !node.subgraphs().empty();
  for (const Value* input : node.inputs()) is_positional = is_positional || this->is_positional(input);
  if (!is_positional) return;
  for (const Value* output : node.outputs()) {
    if (!output || same_elements(trials_[0]->copies.at(output), trials_[1]->copies.at(output))) continue;
    axes_[output] = {.kind = TokenAxes::kPositional};
  }
}

const TokenAxes& TokenFlow::of(const Value* value) const {
  static const TokenAxes fixed;
  const TokenAxes* found = axes_.find(value);
  return found ? *found : fixed;
}

Shape TokenFlow::shape_of(const Value* value) const {
  const auto found = trials_[0]->copies.find(value);
  const TensorType& type = (found == trials_[0]->copies.end() ? value : found->second)->type();
  if (!type.is_static()) fail("[Cache] the shape of '", value->name(), "' depends on data");
  return type.shape();
}

bool TokenFlow::is_of_tokens(const Value* value, int64_t axis) const {
  return shape_of(value)[static_cast<size_t>(axis)] == trials_[0]->tokens;
}

TokenFlow::Size TokenFlow::size_of(const Value* value, int64_t axis) const {
  const int64_t size = shape_of(value)[static_cast<size_t>(axis)];
  const Trial& trial = *trials_[0];
  if (fixed_length_ == 0 && size > 0 && size % trial.tokens == 0) return {Size::kTokens, size / trial.tokens};
  if (size > 0 && size % trial.texts == 0) return {Size::kTexts, size / trial.texts};
  return {Size::kNumber, size};
}

}  // namespace onnx_train
