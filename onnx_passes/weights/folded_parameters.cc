#include "onnx_passes/weights/folded_parameters.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/model/weight_roles.h"
#include "onnx_passes/model/weight_views.h"

namespace onnx_train {
namespace {

constexpr const char* kExportUnfolded = "export without folding (PyTorch: optimize=False, do_constant_folding=False)";

// The float initializers of a graph by the parameters that they are, or were folded from.
class Sources {
 public:
  explicit Sources(const Graph& graph) {
    for (Value* value : graph.initializers()) {
      if (!is_float(value->dtype()) || !value->type().is_static() || graph.is_output(value) || graph.is_input(value)) {
        continue;
      }
      const std::vector<std::string> names = original_names(*value);
      const bool is_folded = !names.empty();
      if (!is_folded && origin_of(*value) != Origin::kParameter) continue;
      sources_[value] = is_folded ? names : std::vector<std::string>{value->name()};
      if (is_folded) folded_.push_back(value);
      for (const std::string& name : sources_[value]) holders_[name].push_back(value);
    }
  }

  const std::vector<Value*>& folded() const { return folded_; }
  const std::vector<std::string>& of(const Value* value) const { return sources_.at(value); }
  const std::vector<Value*>& holders(const std::string& parameter) const { return holders_.at(parameter); }
  std::vector<std::string> with_several_holders() const {
    std::vector<std::string> parameters;
    for (const auto& [parameter, holders] : holders_) {
      if (holders.size() > 1) parameters.push_back(parameter);
    }
    return parameters;
  }
  // Whether the initializer is the parameter itself.
  bool is_itself(const Value* value, const std::string& parameter) const {
    return of(value).size() == 1 && value->name() == parameter;
  }

  // A parameter that `value` was folded from and that another initializer is or was folded from; they are not both
  // parts of a parameter that the file lacks. Null if there is none.
  const std::string* shared(const Value* value) const {
    for (const std::string& parameter : of(value)) {
      for (const Value* other : holders(parameter)) {
        const bool parts = of(value).size() == 1 && of(other).size() == 1 && !is_itself(other, parameter);
        if (other != value && !parts) return &parameter;
      }
    }
    return nullptr;
  }

 private:
  std::map<const Value*, std::vector<std::string>> sources_;
  std::map<std::string, std::vector<Value*>> holders_;
  std::vector<Value*> folded_;
};

std::string quoted_list(const std::vector<std::string>& names) {
  constexpr size_t kMaxShown = 3;
  return first_few(names, kMaxShown, [](const std::string& name) { return concat("'", name, "'"); });
}

// Stores what was repeated once, such as a row of 16 that is the product with ones of [16, 1]; its name stays that of
// the repeated value.
void store_once(Graph* graph, Value* folded, std::vector<Finding>* findings) {
  if (!may_be_repeated(*folded)) return;
  const Tensor contents = stored_contents(*folded);
  const Shape once = shape_once(contents);
  if (once == contents.shape() || num_elements(once) < 2 || is_uniform(taken_once(contents, once))) return;
  const std::string name = folded->name();
  const std::vector<std::string> parameters = original_names(*folded);
  const Tensor part = taken_once(contents, once);
  const std::string unique = graph->unique_name(name + "/once");
  Value* weight = graph->add_initializer(unique, changed_initializer(*folded, part));
  weight->set_type({part.dtype(), Dims(once.begin(), once.end())});
  weight = add_other_name(weight, name);
  WeightView view;
  view.once = once;
  view.repeats = true;
  read_as_view(graph, folded, weight, view);
  findings->push_back({name,
                       concat("folded from ", quoted_list(parameters), ", of the shape ", to_string(once),
                              ", and repeated to ", to_string(contents.shape())),
                       concat("the graph repeats one weight again, '", weight->name(), "'")});
}

// The initializer that the views of a parameter are computed from: the parameter itself, or the one with most elements
// that are stored once, and of these the one with the fewest elements, and the first that is read as a weight.
Value* base_of(const Sources& sources, const std::string& parameter) {
  const auto rank = [](const Value* value) {
    return std::tuple(num_elements(shape_once(stored_contents(*value))), -num_elements(value->type().shape()),
                      is_read_as_weight(*value));
  };
  Value* base = nullptr;
  for (Value* value : sources.holders(parameter)) {
    if (sources.of(value).size() > 1) continue;
    if (sources.is_itself(value, parameter)) return value;
    if (!base || rank(value) > rank(base)) base = value;
  }
  return base;
}

void tie_views(Graph* graph, const Sources& sources, const std::string& parameter, std::vector<Finding>* findings) {
  Value* base = base_of(sources, parameter);
  if (!base) return;
  std::vector<Value*> views = sources.holders(parameter);
  std::erase_if(views, [&](const Value* value) { return value == base || sources.of(value).size() > 1; });
  const bool is_whole = sources.is_itself(base, parameter);
  const Tensor contents = stored_contents(*base);
  for (Value* folded : views) {
    const Tensor numbers = stored_contents(*folded);
    // Parts of a parameter that the file lacks may be equal before training: biases of zeros.
    if (!is_whole && is_uniform(numbers)) continue;
    const auto view = find_view(contents, numbers);
    if (!view) continue;
    const std::string name = folded->name();
    read_as_view(graph, folded, base, *view);
    base = add_other_name(base, name);
    findings->push_back({name,
                         concat("folded from '", parameter, "', which '", base->name(), "' is, too: ", describe(*view)),
                         "they are one weight again"});
  }
}

}  // namespace

std::vector<Finding> restore_folded_parameters(Graph* graph) {
  std::vector<Finding> findings;
  const std::vector<Value*> folded_once = Sources(*graph).folded();
  for (Value* folded : folded_once) {
    if (original_names(*folded).size() == 1) store_once(graph, folded, &findings);
  }
  {
    const Sources sources(*graph);
    for (const std::string& parameter : sources.with_several_holders()) tie_views(graph, sources, parameter, &findings);
  }
  std::vector<Value*> computed;
  const Sources sources(*graph);
  for (Value* folded : sources.folded()) {
    if (origin_of(*folded) != Origin::kParameter || is_read_as_weight(*folded)) continue;
    const bool is_number_of_several = num_elements(folded->type().shape()) == 1 && sources.of(folded).size() > 1;
    if (is_number_of_several || sources.shared(folded)) computed.push_back(folded);
  }
  for (Value* folded : computed) set_computed(folded);
  return findings;
}

std::vector<Finding> describe_folded_parameters(const Graph& graph) {
  std::vector<Finding> findings;
  const Sources sources(graph);
  for (const Value* folded : sources.folded()) {
    const std::string* shared = sources.shared(folded);
    if (origin_of(*folded) == Origin::kComputed) {
      findings.push_back(
          {folded->name(),
           concat("computed from ", quoted_list(sources.of(folded)), " by the exporter, which folded it"),
           concat("not trained, and the gradients of what it was computed from lack its part: ", kExportUnfolded,
                  ", or train it as a weight of its own: --train '*,", folded->name(), "'")});
    } else if (shared) {
      findings.push_back(
          {folded->name(),
           concat("folded from ", quoted_list(sources.of(folded)), "; '", *shared, "' is elsewhere in the model, too"),
           concat("the two are trained apart: ", kExportUnfolded)});
    }
  }
  return findings;
}

}  // namespace onnx_train
