#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "onnx_passes/foreign/missing.h"
#include "onnx_passes/gradients/control_flow.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

#define ONNX_TRAIN_FAMILY(name) std::vector<GradientRule> name##_rules();
#include "onnx_passes/gradients/families.def"

void Grad::refuse(const std::string& reason) const { fail("[AddGradients] ", node_->label(), ": ", reason); }

namespace {

std::string key(std::string_view domain, std::string_view op) { return concat(domain, ".", op); }

using RuleIndex = std::unordered_map<std::string, const GradientRule*>;

RuleIndex make_index() {
  RuleIndex index;
  for (const GradientRule* rule : gradient_rules()) index.emplace(key(rule->domain, rule->op), rule);
  return index;
}

}  // namespace

std::string unknown_rank(const Node& node) {
  for (const Value* input : node.inputs()) {
    if (input && !input->has_rank())
      return concat("the rank of '", input->name(), "' is not known; ", unknown_rank_advice(*input));
  }
  return "";
}

const std::vector<const GradientRule*>& gradient_rules() {
  static const std::vector<const GradientRule*> all = [] {
    static std::vector<std::vector<GradientRule>> families = {
#define ONNX_TRAIN_FAMILY(name) name##_rules(),
#include "onnx_passes/gradients/families.def"
    };
    std::vector<const GradientRule*> rules;
    for (const auto& family : families) {
      for (const GradientRule& rule : family) rules.push_back(&rule);
    }
    return rules;
  }();
  return all;
}

const GradientRule* find_gradient_rule(const Node& node) {
  static const RuleIndex index = make_index();
  const auto found = index.find(key(node.domain(), node.op()));
  return found == index.end() ? nullptr : found->second;
}

namespace {

using ValueSet = std::unordered_set<const Value*>;

// The nodes of `graph` and its parents in the order in which they run.
std::vector<Node*> nodes_in_order(Graph* graph) {
  std::vector<Node*> order;
  std::vector<Graph*> graphs;
  for (Graph* g = graph; g; g = g->parent()) graphs.push_back(g);
  std::reverse(graphs.begin(), graphs.end());
  for (Graph* g : graphs) {
    for (Node* n = g->first(); n; n = n->next()) order.push_back(n);
  }
  return order;
}

// What lies on a path from `with_respect_to` to `outputs`: the nodes in order, and the values that need a gradient.
struct Path {
  std::vector<Node*> nodes;
  ValueSet values;
};

// What depends on `reached` and carries a gradient to them.
ValueSet reach(const std::vector<Node*>& order, ValueSet reached) {
  for (const Node* node : order) {
    const GradientRule* rule = find_gradient_rule(*node);
    if (rule && rule->trait == Trait::kZero) continue;
    bool depends = false, quantized = node->is("QuantizeLinear") || computes_in_integers(*node);
    for_each_input(*node, [&](const Value* v) {
      if (!reached.count(v)) return;
      depends = true;
      quantized = quantized || is_integer(v->dtype());
    });
    if (!depends) continue;
    for (const Value* output : node->outputs()) {
      // Integers end the path, but not those of quantization, nor what is made of them: no gradient of theirs would be
      // lost silently.
      const bool carries = output && (is_float(output->dtype()) || output->dtype() == DType::kUndefined || quantized);
      if (carries) reached.insert(output);
    }
  }
  return reached;
}

Path find_path(const std::vector<Value*>& outputs, const std::vector<Value*>& with_respect_to) {
  Graph* graph = &outputs.at(0)->graph();
  for (const Value* output : outputs) {
    for (Graph* g = &output->graph(); g; g = g->parent()) {
      if (g->parent() == graph) graph = &output->graph();  // the innermost of the outputs' graphs
    }
  }
  const std::vector<Node*> order = nodes_in_order(graph);
  const ValueSet reached = reach(order, {with_respect_to.begin(), with_respect_to.end()});
  Path path;
  ValueSet wanted(outputs.begin(), outputs.end());  // an output depends on it
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    Node* node = *it;
    bool on_path = false, depends = false;  // the node of a value of with_respect_to may depend on none
    for (const Value* output : node->outputs()) on_path = on_path || (wanted.count(output) && reached.count(output));
    for_each_input(*node, [&](const Value* v) { depends = depends || reached.count(v); });
    if (!on_path || !depends) continue;
    path.nodes.push_back(node);
    for_each_input(*node, [&](const Value* v) {
      wanted.insert(v);
      if (reached.count(v)) path.values.insert(v);
    });
  }
  for (const Value* output : outputs) {
    if (reached.count(output)) path.values.insert(output);
  }
  std::reverse(path.nodes.begin(), path.nodes.end());
  return path;
}

// Every operator with a kernel has a row; control flow has none, and may still be unrolled or decided by a plan.
bool has_kernel(const Node& node) { return find_operator(node.domain(), node.op()) || !node.subgraphs().empty(); }

std::string missing_rule_way_out(const Node& node) {
  if (node.is("If")) return way_to_decide(node) + ", or freeze the weights before it";
  if (!has_kernel(node)) return replacement_advice(node);
  return "freeze the weights before it, or " + replacement_advice(node);
}

// Operators without a gradient come first. What a rule cannot do for want of a shape is then left out, because it may
// be a consequence.
std::vector<Obstacle> obstacles_on(const Path& path) {
  std::vector<Obstacle> missing, refused;
  for (const Node* node : path.nodes) {
    const GradientRule* rule = find_gradient_rule(*node);
    if (rule) {
      const std::string reason = rule->obstacle ? rule->obstacle(*node) : "";
      const size_t cut = reason.find("; ");
      if (!reason.empty())
        refused.push_back({node, reason.substr(0, cut), cut == std::string::npos ? "" : reason.substr(cut + 2)});
      if (node->subgraphs().empty()) continue;
      const std::vector<Obstacle> inside = obstacles_inside(*node, path.values);
      missing.insert(missing.end(), inside.begin(), inside.end());
    } else if (!has_function_body(*node) || computes_in_integers(*node)) {
      missing.push_back(
          {node, concat("no gradient is defined for ", node->op(), has_kernel(*node) ? "" : ", nor is a kernel"),
           missing_rule_way_out(*node)});
    }
  }
  const auto has_unknown_input = [](const Obstacle& o) {
    const auto& inputs = o.node->inputs();
    return std::any_of(inputs.begin(), inputs.end(), [](const Value* v) { return v && !v->has_rank(); });
  };
  if (!missing.empty()) std::erase_if(refused, has_unknown_input);
  missing.insert(missing.end(), refused.begin(), refused.end());
  return missing;
}

// The backward pass under construction.
class Backward {
 public:
  Backward(Graph* graph, Path path) : builder_(graph), path_(std::move(path)) {}

  void add(const Value* value, Var gradient) { pending_[value].push_back(gradient); }

  // The sum of what has arrived at `value`; Var() when nothing has.
  Var gradient(const Value* value) {
    auto found = pending_.find(value);
    if (found == pending_.end() || found->second.empty()) return {};
    auto& parts = found->second;
    builder_.set_name(concat("grad/", value->name()));
    Var sum = parts[0];
    for (size_t i = 1; i < parts.size(); ++i) sum = sum + parts[i];
    parts.assign(1, sum);
    return sum;
  }

  void differentiate(const Node& node) {
    std::vector<Var> dy;
    bool any = false;
    for (const Value* output : node.outputs()) {
      dy.push_back(output ? gradient(output) : Var());
      any = any || dy.back();
    }
    if (!any) return;
    std::vector<bool> needs;
    for (const Value* input : node.inputs()) needs.push_back(input && path_.values.count(input));
    const Value* named_after = node.output();
    for (int i = 0; i < node.num_inputs(); ++i) {
      if (needs[static_cast<size_t>(i)]) {
        named_after = node.input(i);
        break;
      }
    }
    builder_.set_name(concat("grad/", named_after ? named_after->name() : node.op()));
    Grad grad(&builder_, &node, std::move(dy), needs, outer_of(node));
    const GradientRule& rule = *find_gradient_rule(node);
    Gradients gradients = rule.rule(grad);
    for (size_t i = 0; i < gradients.size() && i < needs.size(); ++i) {
      if (!gradients[i] || !needs[i]) continue;
      const Value* input = node.input(static_cast<int>(i));
      builder_.set_name(concat("grad/", input->name()));
      add(input,
          rule.trait == Trait::kBroadcasts ? sum_to_shape_of(gradients[i], grad.x(static_cast<int>(i))) : gradients[i]);
    }
    for (const auto& [value, gradient] : grad.sent()) add(value, gradient);
  }

  Builder& builder() { return builder_; }
  const Path& path() const { return path_; }

 private:
  // What the node's subgraphs read of other graphs and needs a gradient.
  std::vector<const Value*> outer_of(const Node& node) const {
    std::vector<const Value*> outer;
    for (const Value* v : read_from_outside(node)) {
      if (path_.values.count(v)) outer.push_back(v);
    }
    return outer;
  }

  Builder builder_;
  Path path_;
  std::unordered_map<const Value*, std::vector<Var>> pending_;
};

[[noreturn]] void report(const std::vector<Obstacle>& obstacles) {
  std::string text = concat("[AddGradients] ", obstacles.size(), obstacles.size() == 1 ? " node" : " nodes",
                            " between the trained weights and the loss cannot be differentiated:");
  for (const Obstacle& o : obstacles) {
    text += concat(" ", o.node->label(), ": ", o.reason, o.way_out.empty() ? "" : "; ", o.way_out, ".");
  }
  throw Error(text, ErrorCode::kNoGradient);
}

// Whether the node needs its body: it has no rule, or one that takes no gradient of what needs one.
bool needs_body(const Node& node, const Path& path) {
  const GradientRule* rule = find_gradient_rule(node);
  if (!rule || rule->first_kept == 0) return !rule;
  for (int i = rule->first_kept; i < node.num_outputs(); ++i) {
    if (path.values.count(node.output(i))) return true;
  }
  return false;
}

// Nodes give way to their bodies where they need them; the body's nodes may again need that.
void inline_bodies(const std::vector<Value*>& outputs, const std::vector<Value*>& with_respect_to) {
  for (bool changed = true; changed;) {
    changed = false;
    const Path path = find_path(outputs, with_respect_to);
    for (Node* node : path.nodes) {
      if (needs_body(*node, path) && inline_function(node)) changed = true;
    }
  }
}

}  // namespace

std::vector<Obstacle> find_obstacles(const std::vector<Value*>& outputs, const std::vector<Value*>& with_respect_to) {
  return obstacles_on(find_path(outputs, with_respect_to));
}

std::vector<Obstacle> find_obstacles(const Value* loss, const std::vector<Value*>& with_respect_to) {
  return find_obstacles(std::vector<Value*>{const_cast<Value*>(loss)}, with_respect_to);
}

std::unordered_set<const Value*> reached_from(const std::vector<const Value*>& values, Graph* graph) {
  return reach(graph->nodes(), {values.begin(), values.end()});
}

std::vector<Value*> add_gradients(Graph* graph, Value* loss, const std::vector<Value*>& with_respect_to) {
  if (!is_float(loss->dtype()))
    fail("[AddGradients] the loss '", loss->name(), "' is ", to_string(loss->type()), "; it must be a float");
  Builder builder(graph);
  builder.set_name("grad/" + loss->name());
  const Var one =
      loss->has_rank() && loss->rank() == 0 ? builder.scalar(loss->dtype(), 1) : ones_like(builder.var(loss));
  return add_gradients(graph, {loss}, {one.value()}, with_respect_to);
}

std::vector<Value*> add_gradients(Graph* graph, const std::vector<Value*>& outputs,
                                  const std::vector<Value*>& output_gradients,
                                  const std::vector<Value*>& with_respect_to) {
  const auto obstacles = find_obstacles(outputs, with_respect_to);
  if (!obstacles.empty()) report(obstacles);
  // An output that is given way to its body is another value afterwards: hold it by a node that reads it.
  Builder anchor(graph);
  anchor.set_name("grad/output");
  std::vector<Value*> held;
  std::vector<Node*> anchors;
  for (Value* output : outputs) anchors.push_back(anchor.op("Identity", {anchor.var(output)}).value()->producer());
  const auto current = [&] {
    std::vector<Value*> values;
    for (const Node* a : anchors) values.push_back(a->input(0));
    return values;
  };
  inline_bodies({anchors[0]->output()}, with_respect_to);
  for (size_t i = 1; i < anchors.size(); ++i) inline_bodies({anchors[i]->output()}, with_respect_to);
  const std::vector<Value*> roots = current();
  const size_t first_id = anchors[0]->output()->id();  // values of the backward pass have this id or a higher one
  for (Node* a : anchors) graph->remove(a);

  Backward backward(graph, find_path(roots, with_respect_to));
  for (size_t i = 0; i < roots.size(); ++i) backward.add(roots[i], backward.builder().var(output_gradients[i]));
  const std::vector<Node*> order = backward.path().nodes;
  for (auto it = order.rbegin(); it != order.rend(); ++it) backward.differentiate(**it);

  std::vector<Value*> gradients;
  ValueSet found;  // gradients of several values may be one
  for (Value* value : with_respect_to) {
    const Var g = backward.path().values.count(value) ? backward.gradient(value) : Var();
    Value* result = g.value();
    if (result) {
      const std::string name = concat("grad/", value->name());
      const bool ours =
          &result->graph() == graph && result->producer() && result->id() >= first_id && !found.count(result);
      if (!ours) {
        backward.builder().set_name(name);
        result = backward.builder().op("Identity", {g}).value();
      }
      graph->claim_name(result, name, first_id);
    }
    gradients.push_back(result);
    found.insert(result);
  }
  return gradients;
}

}  // namespace onnx_train
