#include "onnx_passes/distribution/layout_propagation.h"

#include <algorithm>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

CutStates::CutStates(const Model& model) {
  const auto add_state = [&](const Value* state) {
    const std::string weight = state->role() && !state->role()->of.empty() ? state->role()->of : state->name();
    const Shape shape = state->is_initializer() ? constant_shape(*state) : Shape();
    if (states_.try_emplace(state->name(), State{weight, shape}).second) of_weight_[weight].push_back(state->name());
  };
  for (const EntryPoint& point : model.entry_points) {
    for (const Binding& binding : point.update_bindings) add_state(binding.state);
    for (const Binding& binding : point.initialization_bindings) add_state(binding.state);
  }
}

const Cut* CutStates::find(const std::string& state) const {
  const auto found = cuts_.find(state);
  return found == cuts_.end() ? nullptr : &found->second;
}

bool CutStates::add(const std::string& name, const Cut& cut, int64_t parts) {
  const auto state = states_.find(name);
  if (state == states_.end()) return false;
  const Shape& shape = state->second.shape;
  if (cut.axis < 0 || cut.axis >= std::ssize(shape) || !divides(cut, shape[static_cast<size_t>(cut.axis)], parts))
    return false;
  for (const std::string& other : of_weight_.at(state->second.weight)) {
    if (states_.at(other).shape != shape) continue;
    const auto [known, is_new] = cuts_.try_emplace(other, cut);
    if (!is_new && known->second != cut) return false;
  }
  return true;
}

bool LayoutPropagation::run() {
  do {
    changed_ = false;
    pass();
  } while (changed_ && reason_.empty());
  return reason_.empty();
}

// What has been cut, or is to be added up, changes what the nodes before have: the graph is read again.
void LayoutPropagation::pass() {
  layouts_ = {};
  nodes_ = {};
  exchanged_.clear();
  for (const Value* input : graph_.inputs()) {
    if (const Cut* cut = states_.find(input->name())) layouts_[input] = {Layout::kPart, *cut};
  }
  for (Node *node = graph_.first(), *next = nullptr; node && reason_.empty(); node = next) {
    next = node->next();
    visit(node, &next);
  }
  for (Value* output : std::vector<Value*>(graph_.outputs())) {
    if (!reason_.empty()) break;
    const Layout own = layout(output);
    const bool may_cut = may_cut_ && own.is_part() && output->has_role(roles::kNext) && wanted(*output).is_whole();
    if (may_cut && states_.add(output->role()->of, own.cut, parts_)) {
      changed_ = has_cut_ = true;
    } else if (own.is_part() && !output->has_role(roles::kNext)) {
      exchanged_.push_back(output);
    } else {
      want(output, wanted(*output), concat("the output '", output->name(), "'"));
    }
  }
}

Layout LayoutPropagation::wanted(const Value& output) const {
  const Cut* cut = output.has_role(roles::kNext) ? states_.find(output.role()->of) : nullptr;
  return cut ? Layout{Layout::kPart, *cut} : Layout();
}

void LayoutPropagation::visit(Node* node, Node** next) {
  std::vector<Layout> given;
  bool all_whole = true;
  for (const Value* v : node->inputs()) {
    given.push_back(layout(v));
    all_whole = all_whole && given.back().is_whole();
  }
  if (!node->subgraphs().empty()) {
    for (Value* v : read_from_outside(*node)) want(v, Layout(), node->label());
  }
  if (all_whole) return;
  NodeLayouts layouts = layouts_of(*node, given, parts_);
  if (layouts.by_body) {
    Node* const before = node->previous();
    const std::string label = node->label();
    if (!inline_function(node)) return fail_at(label, *node->input(0));
    *next = before ? before->next() : graph_.first();
    return;
  }
  for (int i = 0; i < node->num_inputs(); ++i) {
    if (node->input(i)) want(node->input(i), layouts.inputs[static_cast<size_t>(i)], node->label());
  }
  for (int i = 0; i < node->num_outputs(); ++i) {
    const Value* output = node->output(i);
    const Layout& own = layouts.outputs[static_cast<size_t>(i)];
    if (!output || own.is_whole()) continue;
    if (own.is_term() && summed_.contains(output)) {
      exchanged_.push_back(output);
    } else {
      layouts_[output] = own;
    }
  }
  nodes_[node] = std::move(layouts);
}

void LayoutPropagation::want(Value* v, const Layout& wanted, const std::string& reader) {
  const Layout given = layout(v);
  if (given == wanted) return;
  if (given.is_term()) {  // and the sum is read by all
    changed_ = summed_.insert(v) || changed_;
  } else if (given.is_part()) {
    fail_at(reader, *v);
  } else if (wanted.is_part() && may_cut_ && cut_source(v, wanted.cut)) {
    changed_ = has_cut_ = true;
  }
}

// Cuts the state of which `v` is a view. False if there is none, or its cut is another one.
bool LayoutPropagation::cut_source(const Value* v, Cut cut) {
  while (const Node* node = v->producer()) {
    if (node->is("Transpose")) {
      Shape perm(static_cast<size_t>(node->input(0)->rank()));
      for (size_t i = 0; i < perm.size(); ++i) perm[i] = static_cast<int64_t>(perm.size() - 1 - i);
      cut.axis = node->attr("perm", perm).at(static_cast<size_t>(cut.axis));
    } else if (!keeps_places(*node)) {
      return false;
    }
    v = node->input(0);
  }
  return graph_.is_input(v) && states_.is_state(v->name()) && !states_.find(v->name()) &&
         states_.add(v->name(), cut, parts_);
}

void LayoutPropagation::fail_at(const std::string& reader, const Value& v) {
  if (reason_.empty()) reason_ = concat(reader, " reads all of '", v.name(), "'");
}

double LayoutPropagation::exchanged_elements() const {
  double all = 0;
  for (const Value* v : exchanged_) {
    double elements = 1;
    for (const Dim& d : v->has_rank() ? *v->type().dims : Dims())
      elements *= d.known() ? static_cast<double>(d.value()) : 1;
    all += elements;
  }
  return all;
}

}  // namespace onnx_train
