#include "runtime/training/rate_search.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/ir/error.h"
#include "runtime/report_text.h"

namespace onnx_train {
namespace {

constexpr double kSpread = 1e3;    // from the built rate to the least and to the largest of the test
constexpr double kForget = 0.9;    // of the smoothed loss
constexpr double kDivergence = 4;  // times the lowest smoothed loss
constexpr int64_t kWarm = 10;      // steps before the smoothed loss says anything
constexpr double kBelowDivergence = 10;

// A copy of all states.
class KeptState {
 public:
  explicit KeptState(Session* session) : state_(session->state()) {
    for (const std::string& name : state_.names()) copies_.push_back(state_.get(name));
  }
  void restore() {
    for (size_t i = 0; i < copies_.size(); ++i) state_.write(i, copies_[i].data());
  }

 private:
  StateStore& state_;
  std::vector<Tensor> copies_;
};

// Records the losses, and stops the training where they leave.
class Losses : public TrainerEvents {
 public:
  void on_step(const StepReport& report) override {
    if (report.skipped) return;  // with loss scaling: a smaller scale follows, the rate grows on
    sum_ = kForget * sum_ + (1 - kForget) * report.loss;
    weight_ = kForget * weight_ + (1 - kForget);
    const double smoothed = sum_ / weight_;
    lowest_ = points.empty() ? smoothed : std::min(lowest_, smoothed);
    points.push_back({report.learning_rate, report.loss, smoothed});
    const double first = points.front().smoothed;
    // Losses may be negative, or close to zero: a rise counts against what there was to lose, too.
    const double bound = lowest_ + (kDivergence - 1) * std::max(std::abs(lowest_), 0.1 * std::abs(first));
    if (static_cast<int64_t>(points.size()) > kWarm && smoothed > bound) diverged = report.learning_rate;
  }
  bool stop() const override { return diverged > 0; }

  std::vector<RatePoint> points;
  double diverged = 0;

 private:
  double sum_ = 0, weight_ = 0, lowest_ = 0;
};

}  // namespace

FoundRate choose_rate(std::vector<RatePoint> points, double diverged) {
  FoundRate found{points.front().rate, std::move(points), diverged, ""};
  const std::vector<RatePoint>& p = found.points;
  // Of the smoothed loss over the logarithm of the rate, on both sides of a point: one side alone is noise.
  constexpr size_t kSide = 3;
  double steepest = 0;
  for (size_t i = kSide; i + kSide < p.size(); ++i) {
    const double slope =
        (p[i + kSide].smoothed - p[i - kSide].smoothed) / std::log(p[i + kSide].rate / p[i - kSide].rate);
    if (i >= static_cast<size_t>(kWarm) && slope < steepest) {
      steepest = slope;
      found.rate = p[i].rate;
      found.rule = "where the loss falls fastest";
    }
  }
  const double below = diverged / kBelowDivergence;
  if (diverged > 0 && (steepest == 0 || found.rate > below)) {
    found.rate = below;
    found.rule = "a tenth of the rate at which the loss diverges";
  }
  if (found.rule.empty()) found.rule = "the lowest of the test: no rate lowers the loss";
  return found;
}

FoundRate find_rate(Session* session, std::unique_ptr<BatchSource> batches, const TrainerOptions& given, double built,
                    const std::atomic<bool>& interrupt) {
  TrainerOptions test;
  test.steps = kRateSteps;
  test.batch_size = given.batch_size;
  test.accumulate = given.accumulate;
  test.clip_norm = given.clip_norm;
  test.shuffle = given.shuffle;
  test.seed = given.seed;
  test.samples = given.samples;
  const double growth = std::pow(kSpread * kSpread, 1.0 / static_cast<double>(kRateSteps - 1));
  test.schedule.peak = built / kSpread;
  test.schedule.curve = parse_curve(concat("exponential(gamma=", number_text(growth), ")"));
  KeptState kept(session);
  Losses losses;
  try {
    Trainer(session, std::move(batches), nullptr, test).run(&losses, interrupt);
  } catch (const Error& error) {
    kept.restore();
    // The loss became infinite from one step to the next, mostly. Data that cannot be used fail in the training, too.
    if (error.code() != ErrorCode::kData || losses.points.empty()) throw;
    losses.diverged = losses.points.back().rate * growth;
  }
  kept.restore();
  if (losses.points.empty()) fail_as(ErrorCode::kData, "the range test made no step: all updates were skipped");
  return choose_rate(std::move(losses.points), losses.diverged);
}

std::string to_text(const FoundRate& found) {
  return concat(format_number(found.rate), ", ", found.rule, " (range test of ", found.points.size(), " steps)");
}

std::string rate_table(const FoundRate& found, size_t width) {
  constexpr size_t kRows = 10;
  TextTable table("rrl");
  table.add({"learning rate", "loss", ""});
  const size_t count = found.points.size();
  const size_t rows = std::min(kRows, count);
  const auto is_nearer = [&](const RatePoint& a, const RatePoint& b) {
    return std::abs(std::log(a.rate / found.rate)) < std::abs(std::log(b.rate / found.rate));
  };
  const RatePoint* const chosen = &*std::min_element(found.points.begin(), found.points.end(), is_nearer);
  for (size_t row = 0; row < rows; ++row) {
    const size_t from = row * count / rows, to = (row + 1) * count / rows;
    const bool has_chosen = chosen >= &found.points[from] && chosen < &found.points[0] + to;
    const RatePoint& shown = has_chosen ? *chosen : found.points[(from + to - 1) / 2];
    table.add({format_number(has_chosen ? found.rate : shown.rate), format_number(shown.smoothed),
               has_chosen ? concat("<- ", found.rule) : ""});
  }
  if (found.diverged > 0) table.add({format_number(found.diverged), "diverges", ""});
  return table.text(2, width);
}

}  // namespace onnx_train
