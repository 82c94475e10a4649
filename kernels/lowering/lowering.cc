#include "kernels/lowering/lowering.h"

#include <algorithm>
#include <memory>
#include <set>

#include "kernels/device.h"
#include "kernels/host.h"
#include "kernels/lowering/canonical/sequences_first.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

std::vector<Pass> required_lowering(const Device& device) {
  // Folding infers every node again, which is half of the planning time and useless if no body was inlined.
  const auto expanded = std::make_shared<bool>(false);
  const auto expands = [expanded](const std::function<bool(Model&)>& pass) {
    return [expanded, pass](Model& model) {
      const bool changed = pass(model);
      *expanded = *expanded || changed;
      return changed;
    };
  };
  return {
      {"fold_constants", fold_constants},
      {"put_sequences_first", expands(put_sequences_first)},
      {"expand_functions", expands([&device](Model& model) { return expand_functions(model, device); })},
      {"unroll_scans", expands(unroll_scans)},
      {"fold_constants", [expanded](Model& model) { return *expanded && fold_constants(model); }},
      {"remove_dead_nodes", remove_dead_nodes},
  };
}

bool LoweringOptions::takes(const std::string& name) const {
  return on && std::none_of(without.begin(), without.end(), [&](const std::string& left_out) {
           return std::equal(left_out.begin(), left_out.end(), name.begin(), name.end(),
                             [](char a, char b) { return a == b || (a == '-' && b == '_'); });
         });
}

std::vector<Pass> lowering_passes(const Device& device, const LoweringOptions& options) {
  const std::vector<Pass> required = required_lowering(device);
  if (!options.on) return required;
  std::vector<Pass> passes = device.lowering(options);
  const auto is_required = [&](const Pass& pass) {
    return std::any_of(required.begin(), required.end(), [&](const Pass& r) { return r.name == pass.name; });
  };
  std::set<std::string> names = {kViews, kWriteInPlace, kUpdateInPlace, kReplay};
  for (const Pass& pass : passes) {
    if (!is_required(pass)) names.insert(pass.name);
  }
  for (std::string name : options.without) {
    std::replace(name.begin(), name.end(), '-', '_');
    if (names.count(name)) continue;
    std::string all;
    for (const std::string& known : names) all += (all.empty() ? "" : ", ") + known;
    fail("no lowering pass '", name, "' can be left out on ", device.name(), "; there are: ", all);
  }
  std::erase_if(passes, [&](const Pass& pass) { return !is_required(pass) && !options.takes(pass.name); });
  return passes;
}

namespace {

// The constant contents of shapes, axes and similar inputs, which kernels may need to decide whether they support a
// node.
Tensor small_constant(const Value* value) {
  return value && value->has_rank() && value->rank() <= 1 ? constant_of(value) : Tensor();
}

}  // namespace

bool expand_functions(Model& model, const Device& device) {
  bool changed = false;
  Node* node = model.graph->first();
  while (node) {
    Node* previous = node->previous();
    Node* next = node->next();
    std::vector<Tensor> constants;
    for (const Value* v : node->inputs()) constants.push_back(small_constant(v));
    const NodeSpec spec(*node, std::move(constants), num_threads());
    const auto are_static = [](const std::vector<Value*>& values) {
      return std::all_of(values.begin(), values.end(), [](const Value* v) { return !v || v->type().is_static(); });
    };
    // Outputs that inference leaves open (present_key of an Attention without past_key) are known inside the body.
    const bool runs = are_static(node->outputs()) && find_kernel(device, spec);
    if (are_static(node->inputs()) && !runs && inline_function(node)) {
      changed = true;
      node = previous ? previous->next() : model.graph->first();  // the body may contain calls, too
    } else {
      node = next;
    }
  }
  return changed;
}

bool remove_dead_nodes(Model& model) {
  Graph& graph = *model.graph;
  bool changed = false;
  Node* previous = nullptr;
  for (Node* node = graph.last(); node; node = previous) {
    previous = node->previous();
    bool used = false;
    for (const Value* output : node->outputs()) used |= output && (!output->uses().empty() || graph.is_output(output));
    if (used) continue;
    graph.remove(node);
    changed = true;
  }
  return graph.remove_unused_initializers() || changed;
}

bool runs_on(const Device& device, Node* made) {
  if (find_kernel(device, *made)) return true;
  made->graph().remove(made);
  return false;
}

}  // namespace onnx_train
