#include "runtime/data/selection.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "onnx_passes/ir/error.h"
#include "runtime/data/random.h"

namespace onnx_train {
namespace {

// The order that splits the data, and the one that --overfit-batches draws from: those of no epoch.
constexpr int64_t kSplitOrder = -1, kOverfitOrder = -2;

// The positions [begin, end) of a random order that are for evaluation.
std::pair<int64_t, int64_t> part_for_evaluation(int64_t samples, const SampleOptions& options, int64_t fixed_batch) {
  int64_t begin = 0, end = std::llround(static_cast<double>(samples) * options.val_split);
  if (options.folds > 0) {
    // The first samples % folds folds have one sample more.
    const auto start = [&](int64_t fold) {
      return fold * (samples / options.folds) + std::min(fold, samples % options.folds);
    };
    begin = start(options.fold - 1);
    end = start(options.fold);
  }
  if (fixed_batch > 0) end -= (end - begin) % fixed_batch;
  if (begin < end && end - begin < samples) return {begin, end};
  const std::string what =
      options.folds > 0 ? concat("--folds ", options.folds) : concat("--val-split ", number_text(options.val_split));
  fail_as(ErrorCode::kUsage, what, " of ", samples, " samples leaves ",
          begin < end ? "none for training" : "none for evaluation",
          fixed_batch > 1 ? concat(" (the model takes batches of ", fixed_batch, ")") : "");
}

}  // namespace

void check_samples(const SampleOptions& options, bool has_evaluation) {
  if (options.folds > 0 && options.val_split > 0)
    throw UsageError("--folds and --val-split both split the data: give one");
  if ((options.folds > 0) != (options.fold > 0)) {
    throw UsageError("--folds K needs --fold I, from 1 to K, and --fold needs --folds");
  }
  if (options.fold > options.folds) {
    throw UsageError(concat("--fold is ", options.fold, ", but there are --folds ", options.folds));
  }
  if (has_evaluation && splits(options)) {
    throw UsageError(concat(options.folds > 0 ? "--fold" : "--val-split",
                            " takes the evaluation data from --data, and --eval-data gives others: give one"));
  }
}

SampleRows select_samples(int64_t samples, const SampleOptions& options, uint64_t seed, int64_t batch_size,
                          int64_t fixed_batch) {
  const int64_t n = options.limit > 0 ? std::min(options.limit, samples) : samples;
  SampleRows rows;
  if (splits(options)) {
    const auto [begin, end] = part_for_evaluation(n, options, fixed_batch);
    const std::vector<int64_t> order = sample_order(n, seed, kSplitOrder, /*shuffle=*/true);
    rows.evaluation.assign(order.begin() + begin, order.begin() + end);
    rows.training.assign(order.begin(), order.begin() + begin);
    rows.training.insert(rows.training.end(), order.begin() + end, order.end());
    std::sort(rows.evaluation.begin(), rows.evaluation.end());
    std::sort(rows.training.begin(), rows.training.end());
  } else {
    rows.training.resize(static_cast<size_t>(n));
    std::iota(rows.training.begin(), rows.training.end(), int64_t{0});
  }
  const auto left = static_cast<int64_t>(rows.training.size());
  if (options.overfit_batches > left / batch_size) {
    fail_as(ErrorCode::kUsage, "--overfit-batches ", options.overfit_batches, " of ", batch_size,
            " samples are more than the ", left, " that there are to train on");
  }
  if (options.overfit_batches > 0) {
    std::vector<int64_t> order = sample_order(left, seed, kOverfitOrder, /*shuffle=*/true);
    order.resize(static_cast<size_t>(options.overfit_batches * batch_size));
    std::sort(order.begin(), order.end());
    for (int64_t& row : order) row = rows.training[static_cast<size_t>(row)];
    rows.training = std::move(order);
  }
  return rows;
}

SelectedData select_samples(const Dataset& data, const Dataset* evaluation, const SampleOptions& options, uint64_t seed,
                            std::optional<int64_t> batch_size) {
  if (options.limit == 0 && options.overfit_batches == 0 && !splits(options)) return {data, {}};
  SampleRows rows =
      select_samples(data.num_samples(), options, seed, batch_size.value_or(data.usual_batch()), data.fixed_batch());
  SelectedData selected{data.select(rows.training), {}};
  if (!rows.evaluation.empty() && evaluation) selected.evaluation = evaluation->select(rows.evaluation);
  return selected;
}

std::vector<std::vector<int64_t>> samples_by_class(const Dataset& data) {
  const Dataset::Array* array = data.classes();
  if (!array) {
    fail_as(ErrorCode::kUsage, "--class-balance needs a class for each sample: labels that are one integer a sample");
  }
  Tensor buffer, value(array->data.dtype(), {1});
  std::map<int64_t, std::vector<int64_t>> by_class;
  for (int64_t sample = 0; sample < data.num_samples(); ++sample) {
    std::memcpy(value.data(), array->row_data(data.row_of(sample), &buffer), value.bytes());
    by_class[static_cast<int64_t>(value.at(0))].push_back(sample);
  }
  std::vector<std::vector<int64_t>> classes;
  for (auto& [label, samples] : by_class) classes.push_back(std::move(samples));
  return classes;
}

std::vector<int64_t> balanced_order(const std::vector<std::vector<int64_t>>& classes, uint64_t seed, int64_t epoch) {
  size_t samples = 0;
  for (const auto& members : classes) samples += members.size();
  SplitMix64 random({seed, static_cast<uint64_t>(epoch)});
  std::vector<int64_t> order;
  while (order.size() < samples) {
    const auto& members = classes[random.below(classes.size())];
    order.push_back(members[random.below(members.size())]);
  }
  return order;
}

}  // namespace onnx_train
