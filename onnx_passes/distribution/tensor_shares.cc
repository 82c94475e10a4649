// Which weights are cut.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "onnx_passes/distribution/layout_propagation.h"
#include "onnx_passes/distribution/tensor_parallel.h"
#include "onnx_passes/distribution/tensor_states.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/flatten.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// More runs than that an axis has where queries, keys, values and gates are the columns of one matrix.
constexpr int64_t kMostRuns = 4;

class TensorCutSearch {
 public:
  TensorCutSearch(const Model& model, int parts) : parts_(parts), states_(model) {
    for (const EntryPoint& point : model.entry_points) add(flatten(model, point.name()));
    add(flatten(model, Entry::kPredict));
  }

  TensorShares run() {
    for (const Value* weight : weights_of_products()) {
      const bool was_cut = states_.find(weight->name()) != nullptr;
      if (!was_cut) cut(*weight);
      count(*weight);
    }
    shares_.cuts = states_.cuts();
    return shares_;
  }

 private:
  struct Trial {
    CutStates states;
    double cut = 0, exchanged = 0;  // states, elements
  };

  // Why a weight is not cut: of the cut from which the most follows.
  struct Refusal {
    std::string reason;
    size_t cuts = 0;
  };

  void add(Model flat) {
    make_inputs_of_states(flat.graph.get(), [&](const std::string& name) { return states_.is_state(name); });
    infer_types(flat.graph.get());
    entries_.push_back(std::move(flat));
  }

  // Trained matrices and kernels that products read, perhaps transposed, and tables of rows, in the order of the first
  // entry point that has sums of their gradients or updates them. Where a weight is an average, training reads another
  // state in its place.
  std::vector<const Value*> weights_of_products() {
    std::vector<const Value*> weights;
    std::set<std::string> known;
    for (const Model& entry : entries_) {
      const NextValues next(*entry.graph);
      std::map<std::string, const Value*> trained;
      for (const Value* input : entry.graph->inputs()) {
        if (input->has_role(roles::kGradientSum)) trained.try_emplace(input->role()->of, nullptr);
        if (next.of(*input) && !input->role()) trained.try_emplace(input->name(), nullptr);
      }
      for (const Value* input : entry.graph->inputs()) {
        const bool is_raw = input->has_role(roles::kRaw);
        const auto weight = trained.find(is_raw ? input->role()->of : input->name());
        if (weight != trained.end() && (is_raw || !weight->second)) weight->second = input;
      }
      for (const Value* input : entry.graph->inputs()) {
        const auto weight = trained.find(input->has_role(roles::kRaw) ? input->role()->of : input->name());
        if (weight == trained.end() || weight->second != input || !input->type().is_static()) continue;
        if (!known.insert(weight->first).second) continue;
        elements_ += elements(*input);
        if (input->rank() >= 2 && is_read_by_product(*input)) weights.push_back(input);
      }
    }
    return weights;
  }

  static bool is_read_by_product(const Value& v) {
    return std::ranges::any_of(v.uses(), [](const Use& use) {
      if (operator_of(*use.node).kind == OperatorKind::kProduct) return true;
      if (use.node->is("Gather") && use.index == 0) return true;
      const bool is_view = use.node->is("Transpose") || keeps_places(*use.node);
      return is_view && is_read_by_product(*use.node->output());
    });
  }

  static double elements(const Value& v) { return static_cast<double>(num_elements(v.type().shape())); }

  void cut(const Value& weight) {
    std::optional<Trial> best;
    Refusal refusal;
    for (const int64_t axis : {0, 1}) {
      const int64_t size = weight.type().shape()[static_cast<size_t>(axis)];
      bool is_cut = false;
      for (int64_t runs = 1; runs <= kMostRuns && !is_cut; ++runs) {
        if (size % runs != 0 || (size / runs) % parts_ != 0) continue;
        std::optional<Trial> trial = attempt(weight, {axis, size / runs}, &refusal);
        is_cut = trial.has_value();
        const auto is_better = [&](const Trial& a, const Trial& b) {
          return std::pair(-a.cut, a.exchanged) < std::pair(-b.cut, b.exchanged);
        };
        if (trial && (!best || is_better(*trial, *best))) best = std::move(trial);
      }
    }
    if (best) {
      states_ = std::move(best->states);
    } else if (shares_.whole.empty()) {
      shares_.whole = weight.name();
      shares_.reason = reason(weight.type().shape(), refusal);
    }
  }

  std::string reason(const Shape& shape, const Refusal& refusal) const {
    std::string odd;
    for (const int64_t size : {shape[0], shape[1]}) {
      if (size % parts_ != 0) odd += concat(odd.empty() ? "" : " and ", size);
    }
    if (!odd.empty()) odd = concat("of its sizes ", to_string(shape), ", ", odd, " cannot be divided by ", parts_);
    if (refusal.reason.empty()) return odd;
    return odd.empty() ? refusal.reason : concat(refusal.reason, "; ", odd);
  }

  // Cuts the weight, and what follows from that in all entry points.
  std::optional<Trial> attempt(const Value& weight, const Cut& cut, Refusal* refusal) {
    Trial trial{states_};
    if (!trial.states.add(weight.name(), cut, parts_)) return std::nullopt;
    for (bool is_done = false; !is_done;) {
      is_done = true;
      trial.exchanged = 0;
      for (Model& entry : entries_) {
        LayoutPropagation layouts(entry.graph.get(), &trial.states, parts_, /*may_cut=*/true);
        if (!layouts.run()) {
          if (const size_t cuts = trial.states.cuts().size(); cuts > refusal->cuts) *refusal = {layouts.reason(), cuts};
          return std::nullopt;
        }
        is_done = is_done && !layouts.has_cut();
        trial.exchanged += layouts.exchanged_elements();
      }
    }
    trial.cut = static_cast<double>(trial.states.cuts().size());
    return trial;
  }

  void count(const Value& weight) {
    ++shares_.matrices;
    if (states_.find(weight.name())) ++shares_.cut_matrices, cut_elements_ += elements(weight);
    shares_.cut_elements = cut_elements_ / elements_;
  }

  int parts_;
  CutStates states_;
  std::vector<Model> entries_;
  TensorShares shares_;
  double elements_ = 0, cut_elements_ = 0;
};

}  // namespace

TensorShares share_out_tensors(const Model& model, int parts) {
  if (parts < 2) return {};
  TensorShares shares = TensorCutSearch(model, parts).run();
  if (shares.cut_matrices == 0) {
    fail_as(ErrorCode::kUsage, "--tensor-parallel ", parts, ": no product with a trained weight can be shared out",
            shares.whole.empty() ? "; none reads one, but perhaps one that is quantized or computed"
                                 : concat("; '", shares.whole, "': ", shares.reason),
            "; leave it out: processes then share out batches");
  }
  return shares;
}

std::string describe(const TensorShares& shares) {
  return concat(shares.cut_matrices, " of ", shares.matrices, " products and lookups, ",
                std::lround(100 * shares.cut_elements), "% of the trained weights");
}

}  // namespace onnx_train
