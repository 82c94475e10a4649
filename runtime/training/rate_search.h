// The learning rate range test of L. N. Smith, "Cyclical Learning Rates for Training Neural Networks", 2015
// (https://arxiv.org/abs/1506.01186, section 3.3): a short training whose rate grows exponentially, and from its loss
// the rate to train with. The session's state is the same bits afterwards, and the training has batches of its own.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime/training/trainer.h"

namespace onnx_train {

inline constexpr int64_t kRateSteps = 100;  // of the test, at most

struct RatePoint {
  double rate, loss;  // of one step, the loss before its update
  double smoothed;    // mean of the losses so far that forgets: weights 0.9^age
};

struct FoundRate {
  double rate;
  std::vector<RatePoint> points;
  double diverged = 0;  // the rate at which the loss rose; 0: it did not to the end of the test
  std::string rule;     // how `rate` follows: "a tenth of the rate at which the loss rises"
};

// The losses of a test, and what they say. Plain values. Nothing is added after the loss has risen clearly: a network
// may recover from there, and that fall says nothing of a good rate.
class RangeTest {
 public:
  void add(double rate, double loss);
  // The training could not go on at this rate.
  void fail(double rate) { diverged_ = diverged_ > 0 ? diverged_ : rate; }
  const std::vector<RatePoint>& points() const { return points_; }
  double diverged() const { return diverged_; }
  // The rate to train with, of at least one point. `built` is that of the optimizer, where the loss does not fall.
  FoundRate choose(double built) const;

 private:
  std::vector<RatePoint> points_;
  double diverged_ = 0;
};

// Runs the test on `batches`, with rates from `built` / 1000 to `built` * 1000, where `built` is the optimizer's rate
// as built, and with the options of the training to come. Ends early where the loss rises clearly or `interrupt` is
// set. Throws Error that names the cause when the first step fails, and when there is no memory for a copy of the
// state.
FoundRate find_rate(Session* session, std::unique_ptr<BatchSource> batches, const TrainerOptions& options, double built,
                    const std::atomic<bool>& interrupt);

// "0.0021, a tenth of the rate at which the loss rises (range test of 78 steps)"
std::string to_text(const FoundRate& found);
// Some of the points, one per line: rate and smoothed loss; the chosen rate is marked.
std::string rate_table(const FoundRate& found, size_t width);

}  // namespace onnx_train
