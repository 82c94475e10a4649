// Weights that an exporter made two of one, or one of two.
#include <algorithm>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/model/select.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/model/weight_views.h"

namespace onnx_train {
namespace {

// The one float initializer of this name.
Value* weight_named(const Graph& graph, const std::string& name, const std::string& option) {
  std::vector<Value*> weights = graph.initializers();
  std::erase_if(weights, [&](const Value* v) {
    return !is_float(v->dtype()) || !v->type().is_static() || v->is_constant() || graph.is_output(v);
  });
  const std::vector<Value*> found = match_names(weights, {name}, option);
  if (found.size() == 1) return found[0];
  fail_as(ErrorCode::kUsage, option, " '", name, "' matches ", found.size(), " weights, '", found[0]->name(), "' and '",
          found[1]->name(), "' among them; name one");
}

// The view of `base` that `x` is. Where all elements are equal, the shapes tell it.
std::optional<WeightView> view_of(const Tensor& base, const Tensor& x) {
  if (auto view = find_view(base, x)) return view;
  const bool equal = base.dtype() == x.dtype() && base.size() == x.size() && x.size() > 0 && is_uniform(base) &&
                     is_uniform(x) && base.at(0) == x.at(0);
  const Shape reversed(base.shape().rbegin(), base.shape().rend());
  if (!equal || (x.shape() != base.shape() && (x.shape() != reversed || x.shape().size() != 2))) return std::nullopt;
  WeightView view;
  view.once = x.shape();
  if (x.shape() != base.shape()) view.perm = {1, 0};
  return view;
}

void tie_pair(Model* model, const std::string& pair) {
  Graph& graph = *model->graph;
  const size_t at = pair.find('=');
  if (at == std::string::npos || at == 0 || at + 1 == pair.size()) {
    fail_as(ErrorCode::kUsage, "--tie takes A=B, two weights of the model; '", pair, "' is no such pair");
  }
  const std::string option = "--tie";
  Value* const x = weight_named(graph, pair.substr(0, at), option);
  Value* const base = weight_named(graph, pair.substr(at + 1), option);
  if (x == base) fail_as(ErrorCode::kUsage, "--tie '", pair, "' names one weight twice, '", x->name(), "'");
  for (const Value* value : {x, base}) {
    if (is_running_statistic(value)) {
      fail_as(ErrorCode::kUsage, "--tie '", pair, "': '", value->name(), "' is a running statistic, not a weight");
    }
  }
  const auto view = view_of(contents_of(*base), contents_of(*x));
  if (!view) {
    fail_as(ErrorCode::kUsage, "--tie '", pair, "': '", x->name(), "' ", to_string(x->type()),
            " does not have the numbers of '", base->name(), "' ", to_string(base->type()),
            ", be it as they are, transposed, sliced or repeated; give both the same first: --weights");
  }
  const std::string name = x->name();
  std::vector<std::string> names = other_names(*x);
  names.push_back(name);
  const bool same = x->type() == base->type() && view->perm.empty();
  add_adapted_note(model,
                   concat("tied: '", name, "' is '", base->name(), "'", same ? "" : ", ", same ? "" : describe(*view)));
  read_as_view(&graph, x, base, *view);
  Value* tied = base;
  for (const std::string& other : names) tied = add_other_name(tied, other);
}

void untie_one(Model* model, const std::string& name) {
  Graph& graph = *model->graph;
  Value* const weight = weight_named(graph, name, "--untie");
  const std::vector<Use> uses = weight->uses();
  if (uses.size() < 2) {
    fail_as(ErrorCode::kUsage, "--untie '", name, "': ", uses.empty() ? "no node reads" : "one node alone reads", " '",
            weight->name(), "', so that it is tied to nothing");
  }
  const auto constants = constants_of(*model);
  const auto constant = constants.find(weight->name());
  std::string made;
  for (size_t i = 1; i < uses.size(); ++i) {
    const std::string told = name_at_reader(*weight, reader_of(uses[i]));
    const std::string copy_name =
        !told.empty() && !graph.find(told) ? told : graph.unique_name(concat(weight->name(), "/", i + 1));
    Value* copy = graph.add_initializer(copy_name, weight->shared_initializer());
    copy->set_type(weight->type());
    if (constant != constants.end()) model->set_metadata(concat(kConstantRecord, copy_name), constant->second);
    uses[i].node->set_input(uses[i].index, copy);
    made += concat(i == 1 ? "" : ", ", "'", copy_name, "'");
  }
  add_adapted_note(model, concat("untied: '", weight->name(), "' and ", made));
}

// A name as it is; of a pattern those that several nodes read.
std::vector<std::string> names_to_untie(const Graph& graph, const std::string& name) {
  if (name.find('*') == std::string::npos) return {name};
  std::vector<std::string> shared;
  for (const Value* value : graph.initializers()) {
    if (is_float(value->dtype()) && !value->is_constant() && value->uses().size() > 1 && matches(name, value->name()))
      shared.push_back(value->name());
  }
  if (shared.empty()) fail_as(ErrorCode::kUsage, "--untie '", name, "' matches no weight that several nodes read");
  return shared;
}

}  // namespace

Pass tie(const std::vector<std::string>& pairs) {
  return {"tie", [pairs](Model& model) {
            for (const std::string& pair : pairs) tie_pair(&model, pair);
            return true;
          }};
}

Pass untie(const std::vector<std::string>& names) {
  return {"untie", [names](Model& model) {
            for (const std::string& name : names) {
              for (const std::string& each : names_to_untie(*model.graph, name)) untie_one(&model, each);
            }
            return true;
          }};
}

}  // namespace onnx_train
