#include "runtime/generation/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// The most likely tokens come first; of equal ones the first.
void sort_first(const std::vector<double>& logits, int64_t count, std::vector<int64_t>* order) {
  std::partial_sort(order->begin(), order->begin() + count, order->end(), [&](int64_t a, int64_t b) {
    const double one = logits[static_cast<size_t>(a)], other = logits[static_cast<size_t>(b)];
    return one > other || (one == other && a < b);
  });
}

}  // namespace

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
  const auto weight = [&](int64_t token) {
    return std::exp((logits[static_cast<size_t>(token)] - *top) / options.temperature);
  };
  int64_t kept = options.top_k > 0 ? std::min(options.top_k, vocabulary) : vocabulary;
  if (kept < vocabulary) sort_first(logits, kept, &order);
  double sum = 0;
  for (int64_t i = 0; i < kept; ++i) sum += weight(order[static_cast<size_t>(i)]);
  if (options.top_p < 1) {
    // Few tokens have most of the probability: no more are sorted than that takes.
    const int64_t candidates = kept;
    int64_t sorted = kept < vocabulary ? kept : 0;
    double reached = 0;
    for (kept = 0; kept < candidates && (kept == 0 || reached < options.top_p * sum); ++kept) {
      if (kept == sorted) {
        constexpr int64_t kFirst = 64, kMore = 8;
        sorted = std::min(candidates, std::max(kFirst, sorted * kMore));
        sort_first(logits, sorted, &order);
      }
      reached += weight(order[static_cast<size_t>(kept)]);
    }
    sum = reached;
  }
  double at = random->uniform() * sum;
  for (int64_t i = 0; i + 1 < kept; ++i) {
    at -= weight(order[static_cast<size_t>(i)]);
    if (at < 0) return order[static_cast<size_t>(i)];
  }
  return order[static_cast<size_t>(kept - 1)];
}

}  // namespace onnx_train
