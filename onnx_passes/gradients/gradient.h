// Reverse-mode differentiation of a graph: a table of rules, one row per operator, and the driver that applies them.
//
// A rule sees one node through Grad and returns one gradient per input (Var() for an input that has none):
//
//     // y = atanh(x)    dx = dy / (1 - x²)
//     {"Atanh", [](Grad& g) { return g.to(g.dy() / (1.0 - g.x() * g.x())); }},
//
// The driver does what all rules have in common: the reverse order, which values need a gradient at all, the sum over
// several uses of a value, reducing over broadcast axes (rows marked kBroadcasts), stopping at integers and booleans.
// It calls a rule only when some output has a gradient and some input needs one. Rules emit standard ONNX operators
// or functions with a body (functions/functions.h), never anything else.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "onnx_passes/inference/builder.h"

namespace onnx_train {

using Gradients = std::vector<Var>;

// One node as its rule sees it.
class Grad {
 public:
  Grad(Builder* builder, const Node* node, std::vector<Var> dy, std::vector<bool> needs,
       std::vector<const Value*> outer = {})
      : builder_(builder), node_(node), dy_(std::move(dy)), needs_(std::move(needs)), outer_(std::move(outer)) {}

  const Node& node() const { return *node_; }
  Builder& b() const { return *builder_; }
  int num_inputs() const { return node_->num_inputs(); }
  int num_outputs() const { return node_->num_outputs(); }
  // Input i; Var() when it is left out.
  Var x(int i = 0) const { return Var(builder_, node_->input(i)); }
  // Output i.
  Var y(int i = 0) const { return Var(builder_, node_->output(i)); }
  // The loss's gradient with respect to output i; Var() when output i does not reach the loss. Where the node has one
  // differentiable output, dy() is always there.
  Var dy(int i = 0) const { return dy_[static_cast<size_t>(i)]; }
  // The same with zeros of the output's shape in place of a gradient that is not there.
  Var dy_or_zeros(int i) const { return dy(i) ? dy(i) : zeros_like(y(i)); }
  // Whether a gradient of input i is wanted. A rule may save work by asking; the driver drops what nobody wants.
  bool needs(int i) const { return i < num_inputs() && needs_[static_cast<size_t>(i)]; }

  // The values of other graphs that the node's subgraphs read and of which a gradient is wanted, and a gradient of one.
  const std::vector<const Value*>& outer() const { return outer_; }
  void send(const Value* outer, Var gradient) { sent_.emplace_back(outer, gradient); }
  const std::vector<std::pair<const Value*, Var>>& sent() const { return sent_; }

  // The rule's answer: gradients of inputs 0, 1, ... ; missing ones at the end are none. Several are a list, because
  // the elements of a list are evaluated in order, and each may add nodes.
  Gradients to(Var gradient) const { return {gradient}; }
  Gradients to(std::initializer_list<Var> gradients) const { return gradients; }

  // Fails the rule with a reason and a way out; the driver adds the node. For what can only be found while building.
  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  Builder* builder_;
  const Node* node_;
  std::vector<Var> dy_;
  std::vector<bool> needs_;
  std::vector<const Value*> outer_;
  std::vector<std::pair<const Value*, Var>> sent_;
};

// x, for a rule whose result is not right to be differentiated by x again: whoever does is refused with the reason,
// "why; way out".
Var differentiated_once(Var x, const std::string& reason);

// v with the shape of x.
Var reshape_like(Var v, Var x);

enum class Trait {
  kNone,
  kBroadcasts,  // gradients have the shape of the output; the driver sums them over the axes that were broadcast
  kZero,  // the gradient is zero almost everywhere (Floor, Sign, ...) or the output is no function of values (Shape)
};

struct GradientRule {
  const char* op;
  std::function<Gradients(Grad&)> rule;  // empty for kZero
  Trait trait = Trait::kNone;
  const char* domain = "";
  // When set: "" if the rule can differentiate this node, else the reason why not and what to do. Asked before
  // anything is built, so that `check` lists every obstacle at once.
  std::function<std::string(const Node&)> obstacle = nullptr;
  // Outputs from this one on are what the rule keeps for itself; a node of which one needs a gradient, for a gradient
  // of the gradient, gives way to its body. 0: there are none.
  int first_kept = 0;
};

// An obstacle of rules that need ranks: "" where all inputs of the node have one.
std::string unknown_rank(const Node& node);

// All rules, in the order of the families' files. Built once.
const std::vector<const GradientRule*>& gradient_rules();
// Null when there is none.
const GradientRule* find_gradient_rule(const Node& node);

// A node between the trainable values and the loss that cannot be differentiated.
struct Obstacle {
  const Node* node;
  std::string reason;   // what is in the way
  std::string way_out;  // what the user can do
};

// Every obstacle between `with_respect_to` and `loss` (which must be a float scalar), in graph order.
std::vector<Obstacle> find_obstacles(const Value* loss, const std::vector<Value*>& with_respect_to);
// The same for several outputs at once: what lies between the values and any of them.
std::vector<Obstacle> find_obstacles(const std::vector<Value*>& outputs, const std::vector<Value*>& with_respect_to);

// The values of the graph through which a gradient flows to `values`: they depend on them, and are floats.
std::unordered_set<const Value*> reached_from(const std::vector<const Value*>& values, Graph* graph);

// Appends the backward pass to `graph`, the loss's graph. Returns for each value of `with_respect_to` its gradient,
// a value of the same type, named grad/<value> where that is free, or null when the loss does not depend on it. Nodes
// before the loss may be in `graph` or its parents. Throws one Error that lists every obstacle.
std::vector<Value*> add_gradients(Graph* graph, Value* loss, const std::vector<Value*>& with_respect_to);
// The same from several values with given output gradients (each of its output's type).
std::vector<Value*> add_gradients(Graph* graph, const std::vector<Value*>& outputs,
                                  const std::vector<Value*>& output_gradients,
                                  const std::vector<Value*>& with_respect_to);

}  // namespace onnx_train
