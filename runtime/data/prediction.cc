#include "runtime/data/prediction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "onnx_passes/ir/error.h"
#include "runtime/data/gather_ahead.h"

namespace onnx_train {
namespace {

// Puts the first `samples` rows of a batch's output where its samples belong in the output of all. An output whose
// first dimension is not the batch is no matter of samples: the last batch's stands.
void place_rows(const Tensor& output, int64_t batch, int64_t at, int64_t samples, int64_t all, Tensor* result) {
  if (output.shape().empty() || output.shape()[0] != batch) {
    *result = output.clone();
    return;
  }
  Shape shape = output.shape();
  shape[0] = all;
  if (result->empty()) *result = Tensor(output.dtype(), shape);
  if (result->shape() != shape)
    fail_as(ErrorCode::kData, "an output changes its shape from batch to batch; give --batch-size ", all);
  const size_t row = output.bytes() / static_cast<size_t>(batch);
  std::memcpy(static_cast<char*>(result->data()) + static_cast<size_t>(at) * row, output.data(),
              static_cast<size_t>(samples) * row);
}

}  // namespace

TensorMap predict(Session* session, const Dataset& data, int64_t batch_size) {
  const int64_t n = data.num_samples();
  const int64_t fixed = data.fixed_batch();
  const int64_t batch = fixed > 0 ? fixed : std::min(batch_size, n);
  TensorMap inputs, results;
  GatherAhead batches(&data);
  const auto next_rows = [&, at = int64_t{0}]() mutable {
    const int64_t samples = std::min(batch, n - at);
    // A model of a fixed batch gets its last one filled up with copies of the last sample.
    std::vector<int64_t> rows(static_cast<size_t>(fixed > 0 && samples > 0 ? batch : samples));
    std::iota(rows.begin(), rows.end(), at);
    for (int64_t& row : rows) row = std::min(row, n - 1);
    at += samples;
    return rows;
  };
  batches.start(next_rows, std::nullopt);
  for (int64_t at = 0; const int64_t count = batches.next(&inputs); at += batch) {
    for (const auto& [name, output] : session->run("predict", inputs)) {
      place_rows(output, count, at, std::min(batch, n - at), n, &results[name]);
    }
  }
  return results;
}

std::vector<PredictedClass> predicted_classes(const Tensor& scores) {
  const int64_t classes = scores.shape()[1];
  std::vector<PredictedClass> found;
  for (int64_t begin = 0; begin < scores.size(); begin += classes) {
    int64_t best = 0;
    double least = 0, sum = 0, exponentials = 0;
    for (int64_t i = 0; i < classes; ++i) {
      if (scores.at(begin + i) > scores.at(begin + best)) best = i;
      least = std::min(least, scores.at(begin + i));
      sum += scores.at(begin + i);
    }
    const double top = scores.at(begin + best);
    for (int64_t i = 0; i < classes; ++i) exponentials += std::exp(scores.at(begin + i) - top);
    constexpr double kRounding = 1e-3;
    const bool are_probabilities = least >= 0 && std::abs(sum - 1) < kRounding;
    found.push_back({best, are_probabilities ? top : 1 / exponentials});
  }
  return found;
}

}  // namespace onnx_train
