#include "onnx_passes/adapt/put_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "onnx_passes/adapt/file_names.h"
#include "onnx_passes/adapt/weight_places.h"
#include "onnx_passes/ir/equal_tensors.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/weight_views.h"

namespace onnx_train {
namespace {

// A weight that a place holds, or holds a part of.
struct WeightAtPlace {
  size_t weight;
  WeightView view;
};
using Candidates = std::vector<WeightAtPlace>;

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
      changed_[i] = !are_same(weights[i].before, weights[i].after);
      by_size_[weights[i].before.size()].push_back(i);
    }
  }

  PutWeights run() {
    for (WeightPlace& place : places_) put_whole(&place);
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
    for (WeightPlace& place : places_) {
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
    if (trained && dtype == DType::kFloat16) expect_in_float16(weight, own);
    return at->second;
  }

  void expect_in_float16(size_t weight, const Tensor& contents) const {
    constexpr double kMost = 65504;
    for (int64_t i = 0; i < contents.size(); ++i) {
      const double x = contents.dtype() == DType::kFloat ? contents.data<float>()[i] : contents.at(i);
      if (std::isfinite(x) && std::abs(x) > kMost)
        fail_as(ErrorCode::kWeightsMisfit, source_, ": '", name_of(weight), "' is float16 there, and ", x,
                ", which it has now, is more than that holds");
    }
  }

  // The numbers of the place if it holds this weight.
  Tensor trained(const WeightPlace& place, const WeightAtPlace& at) {
    return viewed(after(at.weight, place.contents.dtype()), at.view, place.contents.shape());
  }

  bool agree(const WeightPlace& place, const Candidates& candidates) {
    if (candidates.size() < 2) return true;
    const Tensor first = trained(place, candidates[0]);
    return std::all_of(candidates.begin() + 1, candidates.end(),
                       [&](const WeightAtPlace& other) { return are_same(first, trained(place, other)); });
  }

  // The view of the weight that a place of as many elements is.
  std::optional<WeightView> whole_view(const WeightPlace& place, size_t weight) {
    const Tensor& was = before(weight, place.contents.dtype());
    if (!are_same(was, place.contents)) return find_view(was, place.contents);
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
    for (const WeightPlace& each : places_) names.insert(names.end(), each.names.begin(), each.names.end());
    prefix_ = common_prefix(known, names);
  }

  bool is_named(const std::vector<std::string>& names, size_t weight) const {
    const std::vector<std::string>& own = weights_[weight].names;
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return std::count(own.begin(), own.end(), prefix_.apply(name)) > 0;
    });
  }

  // Those with a name that modules tell, else those with any name of the place.
  Candidates named(const WeightPlace& place, const Candidates& candidates) {
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
  Candidates decided(const WeightPlace& place, const Candidates& candidates) {
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

  void choose(WeightPlace* place, const Candidates& chosen) {
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

  void put_whole(WeightPlace* place) {
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
    for (WeightPlace& place : places_) {
      if (place.is_known || place.is_uniform) continue;
      find_slice(&place, left);
      put_packed(&place, left);
    }
    put_slices();
  }

  // The place is a slice of a weight, as q, k and v are of a packed one.
  void find_slice(WeightPlace* place, const std::vector<size_t>& left) {
    Candidates candidates;
    for (const size_t weight : left) {
      if (weights_[weight].before.size() <= place->contents.size()) continue;
      if (auto view = find_view(before(weight, place->contents.dtype()), place->contents))
        candidates.push_back({weight, *view});
    }
    if (!candidates.empty()) slices_.emplace_back(place, decided(*place, candidates));
  }

  // A weight is found if all its elements are. A few equal ones are no sign of it.
  void put_slices() {
    std::map<size_t, std::set<std::pair<int64_t, int64_t>>> parts;
    std::map<size_t, int64_t> elements;
    for (const auto& [place, chosen] : slices_) {
      for (const auto& [weight, view] : chosen) {
        if (parts[weight].insert({view.axis, view.begin}).second) elements[weight] += num_elements(view.once);
      }
    }
    for (const auto& [place, chosen] : slices_) {
      const bool is_whole = std::all_of(chosen.begin(), chosen.end(), [&, &sums = elements](const WeightAtPlace& each) {
        return sums[each.weight] >= weights_[each.weight].before.size();
      });
      if (is_whole) choose(place, chosen);
    }
  }

  // Weights are slices of the place, which packs them.
  void put_packed(WeightPlace* place, const std::vector<size_t>& left) {
    for (const size_t weight : left) {
      const DType dtype = place->contents.dtype();
      if (weights_[weight].before.size() >= place->contents.size() || !changed_[weight]) continue;
      const auto view = find_view(place->contents, before(weight, dtype));
      if (!view || view->repeats) continue;
      for (const size_t other : by_size_.at(weights_[weight].before.size())) {
        if (!are_same(weights_[other].before, weights_[weight].before) ||
            are_same(weights_[other].after, weights_[weight].after))
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

  void write(const WeightPlace& place) {
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
  std::vector<WeightPlace> places_;
  std::vector<bool> changed_, found_;
  std::map<int64_t, std::vector<size_t>> by_size_;
  std::map<std::tuple<size_t, DType, bool>, Tensor> narrowed_;
  bool has_names_ = false;
  NamePrefix prefix_;
  std::vector<std::pair<WeightPlace*, Candidates>> uniform_;
  std::map<size_t, int> uniform_places_;      // of weights that are not found
  std::map<size_t, ptrdiff_t> of_one_value_;  // weights -> a place where names decided
  std::vector<std::pair<WeightPlace*, Candidates>> slices_;
  std::vector<std::string> how_, left_;
  std::multimap<std::string, std::string> tensors_of_;
};

}  // namespace

PutWeights put_weights(const std::vector<TrainedWeight>& weights, const std::string& source, ModelMessage* message) {
  return Placement(weights, source, message).run();
}

}  // namespace onnx_train
