#include "runtime/generation/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

int64_t draw_token(const std::vector<double>& logits, const SamplingOptions& options, SplitMix64* random) {
  const auto vocabulary = static_cast<int64_t>(logits.size());
  for (int64_t i = 0; i < vocabulary; ++i) {
    if (std::isnan(logits[static_cast<size_t>(i)]))
      fail_as(ErrorCode::kData, "the logit of token ", i, " is NaN: nothing can be drawn");
  }
  const auto top = std::max_element(logits.begin(), logits.end());
  if (top == logits.end() || std::isinf(*top))
    fail_as(ErrorCode::kData, "the largest logit is not finite: nothing can be drawn");
  if (options.temperature == 0) return top - logits.begin();

  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  int64_t kept = options.top_k > 0 ? std::min(options.top_k, vocabulary) : vocabulary;
  if (kept < vocabulary || options.top_p < 1) {
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
  }
  std::vector<double> weights(static_cast<size_t>(kept));
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] = std::exp((logits[static_cast<size_t>(order[i])] - *top) / options.temperature);
  double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (options.top_p < 1) {
    double reached = 0;
    kept = 0;
    while (kept < static_cast<int64_t>(weights.size()) && (kept == 0 || reached < options.top_p * sum))
      reached += weights[static_cast<size_t>(kept++)];
    sum = reached;
  }
  double at = random->uniform() * sum;
  for (int64_t i = 0; i + 1 < kept; ++i) {
    at -= weights[static_cast<size_t>(i)];
    if (at < 0) return order[static_cast<size_t>(i)];
  }
  return order[static_cast<size_t>(kept - 1)];
}

}  // namespace onnx_train
