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
  double diverged = 0;  // the rate at which the loss left; 0: it stayed to the end of the test
  std::string rule;     // how `rate` follows: "a tenth of the rate at which the loss diverges"
};

// The rate that the points of a test say, and how. Pure. At least one point.
FoundRate choose_rate(std::vector<RatePoint> points, double diverged);

// Runs the test on `batches`, with rates from `built` / 1000 to `built` * 1000, where `built` is the optimizer's rate
// as built, and with the options of the training to come. Ends early where the loss diverges or `interrupt` is set.
// Throws Error that names the cause when the first step fails, and when there is no memory for a copy of the state.
FoundRate find_rate(Session* session, std::unique_ptr<BatchSource> batches, const TrainerOptions& options, double built,
                    const std::atomic<bool>& interrupt);

// "0.0021, a tenth of the rate at which the loss diverges (range test of 78 steps)"
std::string to_text(const FoundRate& found);
// Some of the points, one per line: rate and smoothed loss; the chosen rate is marked.
std::string rate_table(const FoundRate& found, size_t width);

}  // namespace onnx_train
