#include "onnx_passes/adapt/put_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "onnx_passes/adapt/file_names.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/message_tensors.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/model/weight_views.h"

namespace onnx_train {
namespace {

// A tensor of the model that may hold a weight.
struct TensorPlace {
  onnx::TensorProto* tensor = nullptr;
  std::string name;
  std::vector<std::string> names;  // all that it has
  std::vector<std::string> told;   // by the modules that read it, where the file tells those of all nodes
  Tensor contents, changed;        // `changed` is empty where it stays
  bool is_uniform = false;
  bool is_known = false;  // it is a weight, or a view of one
};

// A weight that a place holds, or holds a part of.
struct WeightAtPlace {
  size_t weight;
  WeightView view;
};
using Candidates = std::vector<WeightAtPlace>;

bool have_equal_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

bool is_float_of_weights(int type) {
  const auto dtype = static_cast<DType>(type);
  return dtype == DType::kFloat || dtype == DType::kDouble || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// The names of the outputs of nodes that hold a tensor as their attribute, by the tensor.
void name_constants(onnx::GraphProto* graph, std::unordered_map<const onnx::TensorProto*, std::string>* names) {
  for (auto& node : *graph->mutable_node()) {
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_t() && node.output_size() > 0) names->emplace(&attribute.t(), node.output(0));
      if (attribute.has_g()) name_constants(attribute.mutable_g(), names);
      for (auto& subgraph : *attribute.mutable_graphs()) name_constants(&subgraph, names);
    }
  }
}

std::vector<TensorPlace> find_places(ModelMessage* message) {
  std::unordered_map<const onnx::TensorProto*, std::string> constants;
  name_constants(message->proto.mutable_graph(), &constants);
  std::vector<TensorPlace> places;
  for_each_tensor(&message->proto, [&](onnx::TensorProto* tensor, bool) {
    if (!is_float_of_weights(tensor->data_type())) return;
    const auto reference = reference_of(*tensor);
    TensorPlace place;
    place.tensor = tensor;
    place.name = tensor->name();
    place.contents = reference ? message->contents.at(*reference) : from_proto(*tensor);
    if (place.contents.size() == 0) return;
    if (const auto constant = constants.find(tensor); constant != constants.end()) place.name = constant->second;
    place.names = {place.name};
    place.is_uniform = is_uniform(place.contents);
    places.push_back(std::move(place));
  });
  return places;
}

// Adds the names that modules have for the tensors of the main graph, as its nodes tell them.
void add_names_of_modules(const ModelMessage& message, std::vector<TensorPlace>* places) {
  ModelMessage copy = message;
  Model model;
  try {
    keep_origins(&copy.proto);
    model = from_message(std::move(copy));
  } catch (const Error&) {
    return;  // what has no form as a graph here has the names of its tensors alone
  }
  std::vector<const Value*> values(model.graph->initializers().begin(), model.graph->initializers().end());
  std::map<std::string, std::vector<std::string>> known;
  for (std::vector<std::string>& names : names_of_weights(model, values)) known[names[0]] = std::move(names);
  for (TensorPlace& place : *places) {
    const auto found = known.find(place.name);
    if (found == known.end()) continue;
    place.names = found->second;
    const Value* value = model.graph->find(place.name);
    for (const Use& use : value->uses()) place.told.push_back(name_at_reader(*value, reader_of(use)));
    if (std::count(place.told.begin(), place.told.end(), "") > 0) place.told.clear();
  }
}

class Placement {
 public:
  Placement(const std::vector<TrainedWeight>& weights, const std::string& source, ModelMessage* message)
      : weights_(weights),
        source_(source),
        message_(*message),
        places_(find_places(message)),
        changed_(weights.size()),
        found_(weights.size()) {
    for (size_t i = 0; i < weights.size(); ++i) {
      changed_[i] = !have_equal_bytes(weights[i].before, weights[i].after);
      by_size_[weights[i].before.size()].push_back(i);
    }
  }

  PutWeights run() {
    for (TensorPlace& place : places_) put_whole(&place);
    settle_uniform();
    expect_all_of_one_value();
    put_parts();
    PutWeights result;
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (!changed_[i]) continue;
      if (found_[i]) ++result.weights;
      if (!found_[i]) result.missing.push_back(why_missing(i));
    }
    result.how = std::move(how_);
    result.tensors_of = std::move(tensors_of_);
    result.left = std::move(left_);
    for (TensorPlace& place : places_) {
      if (place.changed.empty()) continue;
      ++result.tensors;
      write(place);
    }
    return result;
  }

 private:
  const std::string& name_of(size_t weight) const { return weights_[weight].names[0]; }

  // The weight before or after training, in the type of a place.
  const Tensor& before(size_t weight, DType dtype) { return in_type(weight, dtype, false); }
  const Tensor& after(size_t weight, DType dtype) { return in_type(weight, dtype, true); }
  const Tensor& in_type(size_t weight, DType dtype, bool trained) {
    const Tensor& own = trained ? weights_[weight].after : weights_[weight].before;
    if (own.dtype() == dtype) return own;
    const auto [at, is_new] = narrowed_.try_emplace({weight, dtype, trained});
    if (!is_new) return at->second;
    at->second = own.cast(dtype);
    for (int64_t i = 0; trained && i < own.size(); ++i) {
      if (std::isfinite(own.at(i)) && !std::isfinite(at->second.at(i)))
        fail_as(ErrorCode::kWeightsMisfit, source_, ": '", name_of(weight), "' is ", name(dtype), " there, and ",
                own.at(i), ", which it has now, is more than that holds");
    }
    return at->second;
  }

  // The numbers of the place if it holds this weight.
  Tensor trained(const TensorPlace& place, const WeightAtPlace& at) {
    return viewed(after(at.weight, place.contents.dtype()), at.view, place.contents.shape());
  }

  bool agree(const TensorPlace& place, const Candidates& candidates) {
    if (candidates.size() < 2) return true;
    const Tensor first = trained(place, candidates[0]);
    return std::all_of(candidates.begin() + 1, candidates.end(),
                       [&](const WeightAtPlace& other) { return have_equal_bytes(first, trained(place, other)); });
  }

  // The view of the weight that a place of as many elements is.
  std::optional<WeightView> whole_view(const TensorPlace& place, size_t weight) {
    const Tensor& was = before(weight, place.contents.dtype());
    if (!have_equal_bytes(was, place.contents)) return find_view(was, place.contents);
    WeightView same;
    same.once = was.shape();
    return same;
  }

  // Once, when values do not decide. Names of a module that was wrapped have a prefix in one of the two.
  void find_names() {
    if (has_names_) return;
    has_names_ = true;
    add_names_of_modules(message_, &places_);
    std::set<std::string> known;
    for (const TrainedWeight& each : weights_) known.insert(each.names.begin(), each.names.end());
    std::vector<std::string> names;
    for (const TensorPlace& each : places_) names.insert(names.end(), each.names.begin(), each.names.end());
    prefix_ = common_prefix(known, names);
  }

  bool is_named(const std::vector<std::string>& names, size_t weight) const {
    const std::vector<std::string>& own = weights_[weight].names;
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return std::count(own.begin(), own.end(), prefix_.apply(name)) > 0;
    });
  }

  // Those with a name that modules tell, else those with any name of the place.
  Candidates named(const TensorPlace& place, const Candidates& candidates) {
    find_names();
    for (const std::vector<std::string>* names : {&place.told, &place.names}) {
      Candidates found;
      std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(found),
                   [&](const WeightAtPlace& each) { return is_named(*names, each.weight); });
      if (!found.empty()) return found;
    }
    return {};
  }

  // Of the candidates those that the place holds: all of them where they agree, else those with its name.
  Candidates decided(const TensorPlace& place, const Candidates& candidates) {
    if (agree(place, candidates)) return candidates;
    Candidates chosen = named(place, candidates);
    if (chosen.empty() || !agree(place, chosen)) {
      const auto quoted = [&](const WeightAtPlace& each) { return concat("'", name_of(each.weight), "'"); };
      fail_as(ErrorCode::kWeightsMisfit, source_, ": '", place.name, "' has the values that ",
              first_few(candidates, size_t{4}, quoted),
              " had before training, and these differ now; its name is that of none of them alone");
    }
    for (const WeightAtPlace& each : candidates) of_one_value_.emplace(each.weight, &place - places_.data());
    return chosen;
  }

  void choose(TensorPlace* place, const Candidates& chosen) {
    place->is_known = true;
    for (const WeightAtPlace& each : chosen) {
      found_[each.weight] = true;
      if (each.view.axis < 0 && !each.view.repeats) tensors_of_.emplace(name_of(each.weight), place->name);
    }
    const WeightAtPlace& first = chosen[0];
    if (!changed_[first.weight]) return;
    place->changed = trained(*place, first);
    const bool moved = first.view.axis >= 0 || !first.view.perm.empty() || first.view.repeats;
    if (moved) how_.push_back(concat("'", place->name, "' is '", name_of(first.weight), "', ", describe(first.view)));
  }

  // ---- Weights as a whole

  void put_whole(TensorPlace* place) {
    Candidates candidates;
    const auto same_size = by_size_.find(place->contents.size());
    if (same_size == by_size_.end()) return;
    for (const size_t weight : same_size->second) {
      if (auto view = whole_view(*place, weight)) candidates.push_back({weight, *view});
    }
    if (candidates.empty()) return;
    if (!place->is_uniform) return choose(place, decided(*place, candidates));
    const Candidates chosen = named(*place, candidates);
    if (!chosen.empty()) return choose(place, decided(*place, chosen));
    place->is_known = true;
    uniform_.emplace_back(place, candidates);
  }

  // Places of equal elements whose names tell nothing: a weight if there is one of each, else constants.
  void settle_uniform() {
    std::map<size_t, int> times;
    for (auto& [place, candidates] : uniform_) {
      const auto changed = std::find_if(candidates.begin(), candidates.end(), [&](const WeightAtPlace& each) {
        return found_[each.weight] && changed_[each.weight];
      });
      if (changed != candidates.end())
        left_.push_back(concat("'", place->name, "', whose elements are all those that '", name_of(changed->weight),
                               "' had, has another name, and stays as it is"));
      std::erase_if(candidates, [&](const WeightAtPlace& each) { return found_[each.weight]; });
      for (const WeightAtPlace& each : candidates) ++times[each.weight];
    }
    for (const auto& [place, candidates] : uniform_) {
      const bool is_one = candidates.size() == 1 && times[candidates[0].weight] == 1 && place->contents.size() > 1;
      if (is_one) choose(place, candidates);
    }
    for (const auto& [weight, count] : times) {
      if (!found_[weight]) uniform_places_[weight] = count;
    }
  }

  // Where names decided between weights of one value, each of these has a tensor: a single one may be both of them, as
  // a tied embedding is, which no name tells.
  void expect_all_of_one_value() const {
    for (const auto& [weight, place] : of_one_value_) {
      if (found_[weight]) continue;
      fail_as(ErrorCode::kWeightsMisfit, source_, ": there is no tensor for '", name_of(weight), "' beside '",
              places_[static_cast<size_t>(place)].name,
              "', which has the values that it had before training, too: one tensor there may be two weights of the "
              "trained model, and these differ now");
    }
  }

  // ---- Parts of weights, and weights that are parts

  void put_parts() {
    std::vector<size_t> left;
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (!found_[i] && !is_uniform(weights_[i].before)) left.push_back(i);
    }
    std::map<size_t, int64_t> covered;
    for (TensorPlace& place : places_) {
      if (place.is_known || place.is_uniform) continue;
      put_slice(&place, left, &covered);
      put_packed(&place, left);
    }
    for (const auto& [weight, elements] : covered) found_[weight] = elements >= weights_[weight].before.size();
  }

  // The place is a slice of a weight, as q, k and v are of a packed one.
  void put_slice(TensorPlace* place, const std::vector<size_t>& left, std::map<size_t, int64_t>* covered) {
    Candidates candidates;
    for (const size_t weight : left) {
      if (weights_[weight].before.size() <= place->contents.size()) continue;
      if (auto view = find_view(before(weight, place->contents.dtype()), place->contents))
        candidates.push_back({weight, *view});
    }
    if (candidates.empty()) return;
    const Candidates chosen = decided(*place, candidates);
    choose(place, chosen);
    for (const WeightAtPlace& each : chosen) {
      found_[each.weight] = false;
      const bool is_new = slices_.insert({each.weight, each.view.axis, each.view.begin}).second;
      if (is_new) (*covered)[each.weight] += num_elements(each.view.once);
    }
  }

  // Weights are slices of the place, which packs them.
  void put_packed(TensorPlace* place, const std::vector<size_t>& left) {
    for (const size_t weight : left) {
      const DType dtype = place->contents.dtype();
      if (weights_[weight].before.size() >= place->contents.size() || !changed_[weight]) continue;
      const auto view = find_view(place->contents, before(weight, dtype));
      if (!view || view->repeats) continue;
      for (const size_t other : by_size_.at(weights_[weight].before.size())) {
        if (!have_equal_bytes(weights_[other].before, weights_[weight].before) ||
            have_equal_bytes(weights_[other].after, weights_[weight].after))
          continue;
        fail_as(ErrorCode::kWeightsMisfit, source_, ": a part of '", place->name, "' has the values that '",
                name_of(weight), "' and '", name_of(other), "' had before training, and these differ now");
      }
      if (place->changed.empty()) place->changed = place->contents.clone();
      put_view(after(weight, dtype), *view, &place->changed);
      found_[weight] = true;
      how_.push_back(concat("'", name_of(weight), "' is in '", place->name, "', ", describe(*view)));
    }
  }

  std::string why_missing(size_t weight) const {
    const TrainedWeight& w = weights_[weight];
    const std::string what = concat("'", w.names[0], "' ", name(w.before.dtype()), to_string(w.before.shape()));
    const auto uniform = uniform_places_.find(weight);
    if (uniform != uniform_places_.end())
      return concat(what, ", whose elements were all equal before training, as those of ", uniform->second,
                    uniform->second == 1 ? " tensor there are, which has not its name"
                                         : " tensors there are, none of which has its name");
    return concat(what, is_uniform(w.before) ? ", whose elements were all equal before training" : "");
  }

  void write(const TensorPlace& place) {
    if (const auto reference = reference_of(*place.tensor)) {
      message_.contents[*reference] = place.changed;
      return;
    }
    onnx::TensorProto data;
    to_proto(place.changed, "", &data);
    for (auto clear : {&onnx::TensorProto::clear_float_data, &onnx::TensorProto::clear_double_data,
                       &onnx::TensorProto::clear_int32_data})
      (place.tensor->*clear)();
    place.tensor->set_raw_data(data.raw_data());
  }

  const std::vector<TrainedWeight>& weights_;
  const std::string& source_;
  ModelMessage& message_;
  std::vector<TensorPlace> places_;
  std::vector<bool> changed_, found_;
  std::map<int64_t, std::vector<size_t>> by_size_;
  std::map<std::tuple<size_t, DType, bool>, Tensor> narrowed_;
  bool has_names_ = false;
  NamePrefix prefix_;
  std::vector<std::pair<TensorPlace*, Candidates>> uniform_;
  std::map<size_t, int> uniform_places_;                   // of weights that are not found
  std::map<size_t, ptrdiff_t> of_one_value_;               // weights -> a place where names decided
  std::set<std::tuple<size_t, int64_t, int64_t>> slices_;  // of weights, that were found
  std::vector<std::string> how_, left_;
  std::multimap<std::string, std::string> tensors_of_;
};

}  // namespace

PutWeights put_weights(const std::vector<TrainedWeight>& weights, const std::string& source, ModelMessage* message) {
  return Placement(weights, source, message).run();
}

std::vector<std::vector<std::string>> names_of_weights(const Model& model, const std::vector<const Value*>& weights) {
  const auto parameters = transposed_parameters(model);
  std::vector<std::vector<std::string>> all;
  for (const Value* value : weights) {
    std::vector<std::string> names = {value->name()};
    const auto add = [&](const std::string& name) {
      if (std::count(names.begin(), names.end(), name) == 0) names.push_back(name);
    };
    if (const auto found = parameters.find(value->name()); found != parameters.end()) add(found->second);
    for (const std::string& name : other_names(*value)) add(name);
    for (const std::string& name : names_of_readers(*value)) add(name);
    all.push_back(std::move(names));
  }
  return all;
}

}  // namespace onnx_train
