#include "runtime/training/rate_search.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/ir/error.h"
#include "runtime/support/report_text.h"

namespace onnx_train {
namespace {

constexpr double kSpread = 1e3;  // from the built rate to the least and to the largest of the test
constexpr double kForget = 0.9;  // of the smoothed loss
constexpr size_t kWarm = 10;     // steps before the smoothed loss says anything
constexpr size_t kQuiet = 33;    // a third of the test, whose rates are at most a tenth of the built one
constexpr double kBelowRise = 10;

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

// Records the losses, and stops the training where they rise.
class Losses : public TrainerEvents {
 public:
  void on_step(const StepReport& report) override {
    if (report.skipped) return;  // with loss scaling: a smaller scale follows, the rate grows on
    test.add(report.learning_rate, report.loss);
  }
  bool stop() const override { return test.diverged() > 0; }

  RangeTest test;
};

// What a test says so far.
struct Course {
  double start = 0;   // mean of the losses before the rate matters, up to the lowest
  double noise = 0;   // their standard deviation; a trend in them counts little
  size_t lowest = 0;  // point of the lowest smoothed loss
};

Course course_of(const std::vector<RatePoint>& points) {
  Course course;
  course.lowest = std::min(points.size(), kWarm) - 1;
  for (size_t i = kWarm; i < points.size(); ++i) {
    if (points[i].smoothed < points[course.lowest].smoothed) course.lowest = i;
  }
  const size_t before = std::min(course.lowest + 1, kQuiet), quiet = std::min(points.size(), kQuiet);
  for (size_t i = 0; i < before; ++i) course.start += points[i].loss / static_cast<double>(before);
  // By the differences of neighbours (J. von Neumann et al., "The mean square successive difference", 1941).
  for (size_t i = 1; i < quiet; ++i) course.noise += std::pow(points[i].loss - points[i - 1].loss, 2);
  if (quiet > 1) course.noise = std::sqrt(course.noise / 2 / static_cast<double>(quiet - 1));
  return course;
}

// Whether a smoothed loss that follows the points is clearly above the lowest of them: by more than the noise does
// (the smoothed loss has a quarter of its deviation), and by a part of what was gained. Where the noise is that of a
// divergence, four times the lowest is clear, too.
bool is_rise(const std::vector<RatePoint>& points, double smoothed) {
  if (points.size() < kWarm) return false;
  const Course course = course_of(points);
  const double lowest = points[course.lowest].smoothed, start = std::abs(course.start);
  const double above_noise = std::min(2 * course.noise, 3 * std::max(std::abs(lowest), 0.1 * start));
  return smoothed > lowest + std::max({above_noise, 0.25 * (course.start - lowest), 0.05 * start});
}

}  // namespace

void RangeTest::add(double rate, double loss) {
  if (diverged_ > 0) return;
  // The weights of all losses so far sum to 1 - 0.9^n.
  const double before = 1 - std::pow(kForget, static_cast<double>(points_.size())), after = 1 - kForget * (1 - before);
  const double sum = points_.empty() ? 0 : kForget * before * points_.back().smoothed;
  const double smoothed = (sum + (1 - kForget) * loss) / after;
  if (is_rise(points_, smoothed)) diverged_ = rate;
  points_.push_back({rate, loss, smoothed});
}

FoundRate RangeTest::choose(double built) const {
  FoundRate found{built, points_, diverged_, "the optimizer's own: no rate lowers the loss clearly against its noise"};
  const Course course = course_of(points_);
  const double lowest = points_[course.lowest].smoothed, fall = course.start - lowest;
  if (fall > std::max(course.noise, 1e-3 * std::abs(course.start))) {
    size_t half = course.lowest;
    while (half > 0 && points_[half - 1].smoothed <= course.start - fall / 2) --half;
    found.rate = points_[half].rate;
    found.rule = "where the loss has fallen by half";
  }
  if (diverged_ > 0 && found.rate > diverged_ / kBelowRise) {
    found.rate = diverged_ / kBelowRise;
    found.rule = "a tenth of the rate at which the loss rises";
  }
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
    if (error.kind() != ErrorCode::kData || losses.test.points().empty()) throw;
    losses.test.fail(losses.test.points().back().rate * growth);
  }
  kept.restore();
  if (losses.test.points().empty()) fail_as(ErrorCode::kData, "the range test made no step: all updates were skipped");
  return losses.test.choose(built);
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
  if (found.diverged > 0) table.add({format_number(found.diverged), "rises", ""});
  return table.text(2, width);
}

}  // namespace onnx_train
