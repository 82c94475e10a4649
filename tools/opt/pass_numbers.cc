#include "tools/opt/pass_numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/lowering/pipeline.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/training/body_draws.h"
#include "runtime/models/build_settings.h"

namespace onnx_train {
namespace {

using Verdict = PassNumbers::Verdict;

// Sums of float32 in another order, and of what is rounded to 16 or 8 bits between them.
constexpr double kSums = 1e-6, kRoundedSums = 2e-3;

// The pass after which the sizes of a plan are known, so that its model can run.
constexpr const char* kFirst = "set_shapes";

double distance(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return std::numeric_limits<double>::infinity();
  double squares = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    const double x = a.at(i), y = b.at(i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    squares += (x - y) * (x - y);
    if (!std::isfinite(x) || !std::isfinite(y)) return std::numeric_limits<double>::infinity();
  }
  return std::sqrt(squares);
}

double norm(const Tensor& x) {
  double squares = 0;
  for (int64_t i = 0; i < x.size(); ++i) squares += std::isfinite(x.at(i)) ? x.at(i) * x.at(i) : 0;
  return std::sqrt(squares);
}

double relative_distance(const Tensor& a, const Tensor& b) {
  const bool same = a.dtype() == b.dtype() && a.shape() == b.shape() &&
                    (a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0);
  if (same) return 0;
  const double length = norm(b), between = distance(a, b);
  if (!is_float(a.dtype()) && between == 0) return 1;  // integers that double rounds
  return between == 0 ? 0 : between / std::max(length, std::numeric_limits<double>::min());
}

}  // namespace

void NumberCheck::observe(const PassTiming* pass, const Model& model) {
  if (!pass) {
    rows_.clear();
    has_begun_ = false;
    is_exact_ = true;
    exact_.reset();
    if (!bounds_.first.empty()) return;
  } else if (!has_begun_ && pass->name != bounds_.first) {
    return;
  }
  const bool begins = !has_begun_;
  has_begun_ = true;
  if (!begins && !pass->changed && pass->nodes_before == pass->nodes_after) {
    rows_.push_back({pass->name});
    return;
  }
  try {
    TensorMap outputs = run_(clone(model), /*in_double=*/false);
    if (begins) {
      first_ = clone(model);
      outputs_ = std::move(outputs);
    } else {
      add(pass->name, pass->numbers, outputs);
    }
    describe(model);
  } catch (const Error& error) {
    if (begins) throw;
    is_exact_ = is_exact_ && pass->numbers == kEqualInBits;
    rows_.push_back({pass->name});
    add_failed(pass->name, error.what());
  }
}

void NumberCheck::add_failed(const std::string& pass, const std::string& fault) {
  const auto known = std::ranges::find(rows_.rbegin(), rows_.rend(), pass, &PassNumbers::pass);
  PassNumbers& row = known != rows_.rend() ? *known : rows_.emplace_back(PassNumbers{pass});
  row = {pass, Verdict::kFails};
  row.fault = fault;
}

void NumberCheck::add(const std::string& pass, const std::string& numbers, const TensorMap& outputs) {
  rows_.push_back(compare(pass, numbers, outputs));
  outputs_ = outputs;
  is_exact_ = true;
}

// What the outputs of the last model are.
void NumberCheck::describe(const Model& model) {
  norm_.clear();
  norm_is_read_ = false;
  slots_.clear();
  std::map<std::string, std::string> next;  // of each state
  for (const Value* output : model.graph->outputs()) {
    if (output->has_role(roles::kNext)) next[output->role()->of] = output->name();
    if (!output->has_role(roles::kGradNorm)) continue;
    norm_ = output->name();
    norm_is_read_ = !output->uses().empty();
  }
  for (const Value* state : model.graph->inputs()) {
    const auto slot = next.find(state->name());
    if (slot == next.end() || !state->role() || state->role()->of.empty()) continue;
    if (const auto weight = next.find(state->role()->of); weight != next.end())
      slots_[weight->second].push_back(slot->second);
  }
}

PassNumbers NumberCheck::compare(const std::string& pass, const std::string& numbers, const TensorMap& outputs) {
  const bool keeps_rest = numbers == kEqualButNorm && !norm_is_read_;
  std::map<std::string, PassNumbers> found;
  for (const auto& [name, before] : outputs_) {
    const auto after = outputs.find(name);
    const bool exact = is_exact_ && (numbers == kEqualInBits || (keeps_rest && name != norm_));
    PassNumbers row{pass, Verdict::kAgrees, name, std::numeric_limits<double>::infinity(), exact ? 0 : bounds_.sums};
    if (after != outputs.end()) row.difference = relative_distance(after->second, before);
    if (row.difference > row.bound) row.verdict = Verdict::kOff;
    if (row.verdict == Verdict::kOff && !exact && std::isfinite(row.difference) &&
        is_rounding(name, before, after->second))
      row.verdict = Verdict::kRounds;
    found[name] = row;
  }
  // Adam makes 1 or -1 of the least gradient: what the gradient is, its moments say.
  for (const auto& [weight, slots] : slots_) {
    const auto row = found.find(weight);
    const auto agrees = [&](const std::string& slot) { return found[slot].verdict <= Verdict::kRounds; };
    if (row == found.end() || row->second.verdict != Verdict::kOff || row->second.bound == 0) continue;
    if (std::isfinite(row->second.difference) && std::ranges::all_of(slots, agrees))
      row->second.verdict = Verdict::kRounds;
  }
  PassNumbers worst{pass, Verdict::kAgrees};
  for (const auto& [name, row] : found) {
    if (std::pair(row.verdict, row.difference) >= std::pair(worst.verdict, worst.difference)) worst = row;
  }
  return worst;
}

// Of sums that cancel, nothing is left but rounding: the gradient of a bias before a normalization, what Adam makes of
// it.
bool NumberCheck::is_rounding(const std::string& output, const Tensor& before, const Tensor& after) {
  if (!exact_) {
    try {
      exact_ = run_(clone(first_), /*in_double=*/true);
    } catch (const Error&) {
      exact_.emplace();
    }
  }
  constexpr double kTimes = 8;
  const auto found = exact_->find(output);
  if (found == exact_->end() || !is_float(before.dtype())) return false;
  const Tensor& exact = found->second;
  const double error_before = distance(before.cast(exact.dtype()), exact);
  return distance(after.cast(exact.dtype()), exact) <= kTimes * std::max(error_before, bounds_.sums * norm(exact));
}

namespace {

// Runs models between two passes, as they are.
class PlainRuns {
 public:
  // `expands` receives whether calls had no kernel, so that their bodies have run.
  PlainRuns(SessionOptions options, TensorMap inputs, bool* expands)
      : options_(std::move(options)), inputs_(std::move(inputs)), expands_(expands) {
    options_.plan.lowering = {};
    options_.plan.lowering.on = false;
    options_.plan.pipeline = {};
    options_.plan.memory = 0;
    options_.views = {};
  }

  TensorMap operator()(Model model, bool in_double) {
    if (in_double) model = in_precision(std::move(model), "float64");
    Session session(std::move(model), options_);
    session.set_new_choices(Choices::New::kByRule);  // equal nodes of all models have equal forms
    TensorMap inputs, outputs;
    for (const Value* input : session.model().graph->inputs()) {
      const auto given = inputs_.find(input->name());
      if (given == inputs_.end()) continue;
      const Tensor& value = given->second;
      inputs[input->name()] = value.dtype() == input->dtype() ? value : value.cast(input->dtype());
    }
    for (const auto& [name, tensor] : session.run(Entry::kPredict, inputs)) outputs[name] = tensor.clone();
    if (in_double) return outputs;
    *expands_ =
        std::ranges::any_of(session.plan(Entry::kPredict, shapes_of(inputs)).passes(),
                            [](const PassTiming& pass) { return pass.name == "expand_functions" && pass.changed; });
    return outputs;
  }

 private:
  SessionOptions options_;
  TensorMap inputs_;
  bool* expands_;
};

// The outputs of a run of the session, which its states belong to.
TensorMap outputs_of_run(Session* session, const EntryName& entry, const TensorMap& inputs) {
  TensorMap outputs;
  for (const auto& [name, tensor] : session->run(entry, inputs)) outputs[name] = tensor.clone();
  for (const Value* output : session->plan(entry, shapes_of(inputs)).model().graph->outputs()) {
    if (output->has_role(roles::kNext) && !outputs.contains(output->name()))
      outputs[output->name()] = session->contents(output->role()->of);
  }
  return outputs;
}

}  // namespace

std::vector<PassNumbers> verify_lowering(Model model, const EntryName& entry, const TensorMap& inputs,
                                         SessionOptions options) {
  const bool rounds = !model.metadata("onnx_train.precision").empty();
  TensorMap all = inputs;  // and what a session adds to them
  all[kRandomKeyInput] = Tensor::of<uint64_t>({2}, {~options.seed, 0});
  std::optional<NumberCheck> check;
  bool expands = false;
  std::string without_kernel;  // the first pass since which some calls have no kernel
  SessionOptions observed = options;
  observed.plan.pipeline.observe = [&](const PassTiming* pass, const Model& now) {
    check->observe(pass, now);
    if (!pass || !expands) without_kernel.clear();
    if (pass && expands && without_kernel.empty()) without_kernel = pass->name;
  };
  Session session(std::move(model), observed);
  session.set_new_choices(Choices::New::kByRule);
  for (const std::string& state : session.state_names()) all[state] = session.contents(state);
  check.emplace(PlainRuns(options, std::move(all), &expands), NumberBounds{rounds ? kRoundedSums : kSums, kFirst});
  const std::string placement = concat(kViews, ", ", kWriteInPlace, ", ", kUpdateInPlace);
  try {
    check->add(placement, kEqualInBits, outputs_of_run(&session, entry, inputs));
  } catch (const Error& error) {
    if (check->rows().empty()) throw;
    const std::vector<Pass> passes = lowering_passes(session.device(), options.plan.lowering);
    const auto next = std::ranges::find(passes, kFirst, &Pass::name) - passes.begin() + 1 + std::ssize(check->rows());
    if (next < std::ssize(passes)) {
      check->add_failed(passes[static_cast<size_t>(next)].name, error.what());
    } else {  // a pass has made a call that has no kernel; or else what comes after all passes fails
      check->add_failed(without_kernel.empty() ? placement : without_kernel, error.what());
    }
  }
  return check->rows();
}

}  // namespace onnx_train
