#include "onnx_passes/import/decide_branches.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "onnx_passes/inference/fold_branch.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr int kMostNodes = 300;  // after an If, to see whether a branch fits

struct Inferred {
  Value* value;
  TensorType type;
  std::optional<Dims> elements;
};

// Sets types of values for a while.
class Trial {
 public:
  Trial() = default;
  Trial(const Trial&) = delete;
  ~Trial() {
    for (auto it = before_.rbegin(); it != before_.rend(); ++it) {
      it->value->set_type(std::move(it->type));
      it->value->set_elements(std::move(it->elements));
    }
  }
  void set(Value* value, const TensorType& type) {
    before_.push_back({value, value->type(), value->elements()});
    value->set_type(type);
    value->set_elements(std::nullopt);
  }

 private:
  std::vector<Inferred> before_;
};

// The first thing after the If that the branch does not fit: "node 'fc' (Gemm)"; "" if there is none.
std::string misfit(Node* node, const Graph& branch, const Declarations& declared) {
  Trial trial;
  Marks<Value> changed;
  const auto contradicts = [&](const Value& value) {
    const TensorType* type = declared.of(value);
    return type && contradict(*type, value.type());
  };
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (!node->output(i)) continue;
    trial.set(node->output(i), branch.outputs()[static_cast<size_t>(i)]->type());
    if (contradicts(*node->output(i))) return concat("the declared type of '", node->output(i)->name(), "'");
    changed.insert(node->output(i));
  }
  int left = kMostNodes;
  for (Node* next = node->next(); next && left > 0; next = next->next(), --left) {
    const auto& inputs = next->inputs();
    if (std::none_of(inputs.begin(), inputs.end(), [&](const Value* v) { return v && changed.contains(v); })) continue;
    for (Value* output : next->outputs()) {
      if (!output) continue;
      trial.set(output, {});
      changed.insert(output);
    }
    try {
      check_shapes(*next);
      infer_types(next);
    } catch (const Error&) {
      return next->label();
    }
    for (const Value* output : next->outputs()) {
      if (output && contradicts(*output)) return concat("the declared type of '", output->name(), "'");
    }
  }
  return "";
}

bool differ(const Graph& a, const Graph& b) {
  for (size_t i = 0; i < std::min(a.outputs().size(), b.outputs().size()); ++i) {
    if (contradict(a.outputs()[i]->type(), b.outputs()[i]->type())) return true;
  }
  return false;
}

struct Choice {
  const char* branch;
  std::string misfit;  // of the other branch
};

std::optional<Choice> choose(Node* node, const Declarations& declared) {
  const Graph *then = node->subgraph("then_branch"), *other = node->subgraph("else_branch");
  const auto outputs = static_cast<size_t>(node->num_outputs());
  if (!then || !other || then->outputs().size() < outputs || other->outputs().size() < outputs) return std::nullopt;
  if (!differ(*then, *other)) return std::nullopt;
  const std::string of_then = misfit(node, *then, declared), of_other = misfit(node, *other, declared);
  if (of_then.empty() == of_other.empty()) return std::nullopt;
  return of_then.empty() ? Choice{"then_branch", of_other} : Choice{"else_branch", of_then};
}

}  // namespace

void decide_branches(Graph* graph, const Declarations& declared,
                     const std::function<void(const std::string&, const std::string&, const std::string&)>& decided) {
  bool stale = false;  // the types of nodes from here on know nothing yet of a branch that was taken
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    if (stale) {
      check_shapes(*node);
      infer_types(node);
    }
    if (!node->is("If")) continue;
    const std::optional<Choice> choice = choose(node, declared);
    Node* const before = node->previous();
    const std::string label = node->label();
    if (!choice || !take_branch(node, choice->branch)) continue;
    decided(label, choice->branch, choice->misfit);
    stale = true;
    next = before ? before->next() : graph->first();
  }
}

}  // namespace onnx_train
