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
constexpr uint64_t kLengthOrder = 0x6c656e677468;  // of batches by length, beside that of samples

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
  const int64_t left_by_skip = std::max<int64_t>(samples - options.skip, 0);
  const int64_t n = options.limit > 0 ? std::min(options.limit, left_by_skip) : left_by_skip;
  if (n == 0 && options.skip > 0)
    fail_as(ErrorCode::kUsage, "--skip ", options.skip, " of ", samples, " samples leaves none");
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
  for (std::vector<int64_t>* part : {&rows.training, &rows.evaluation}) {
    for (int64_t& row : *part) row += options.skip;
  }
  return rows;
}

std::vector<SampleGroup> groups_by_class(const Dataset& data) {
  const Dataset::Array* array = data.classes();
  if (!array) {
    fail_as(ErrorCode::kUsage, "--class-balance needs a class for each sample: labels that are one integer a sample");
  }
  Tensor buffer, value(array->rows.dtype(), {1});
  std::map<int64_t, SampleGroup> by_class;
  for (int64_t sample = 0; sample < data.num_samples(); ++sample) {
    std::memcpy(value.data(), array->row_data(data.row_of(sample), &buffer), value.bytes());
    by_class[static_cast<int64_t>(value.at(0))].samples.push_back(sample);
  }
  std::vector<SampleGroup> groups;
  for (auto& [label, group] : by_class) groups.push_back(std::move(group));
  return groups;
}

std::vector<SampleGroup> groups_by_part(const Dataset& data) {
  std::vector<SampleGroup> groups;
  std::vector<int64_t> ends;
  for (const DataPart& part : data.parts()) {
    groups.push_back({{}, part.weight});
    ends.push_back((ends.empty() ? 0 : ends.back()) + part.rows);
  }
  for (int64_t sample = 0; sample < data.num_samples(); ++sample) {
    const auto part = std::upper_bound(ends.begin(), ends.end(), data.row_of(sample)) - ends.begin();
    groups[static_cast<size_t>(part)].samples.push_back(sample);
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    if (!groups[i].samples.empty()) continue;
    const DataPart& part = data.parts()[i];
    fail_as(ErrorCode::kUsage, part.name, " has the weight ", number_text(part.weight), " and ",
            part.rows == 0 ? "no sample" : "none of the selected samples", ": leave it out");
  }
  const std::vector<int64_t> shares = shares_of(groups);
  for (size_t i = 0; i < groups.size(); ++i) {
    const DataPart& part = data.parts()[i];
    if (shares[i] > 0) continue;
    fail_as(ErrorCode::kUsage, part.name, " has the weight ", number_text(part.weight), ", less than one of the ",
            data.num_samples(), " samples of an epoch: leave it out");
  }
  return groups;
}

std::vector<int64_t> shares_of(const std::vector<SampleGroup>& groups) {
  double weights = 0;
  size_t samples = 0;
  for (const SampleGroup& group : groups) {
    weights += group.weight;
    samples += group.samples.size();
  }
  std::vector<int64_t> shares;
  std::vector<std::pair<double, size_t>> remainders;
  auto left = static_cast<int64_t>(samples);
  for (const SampleGroup& group : groups) {
    const double exact = static_cast<double>(samples) * (group.weight / weights);
    shares.push_back(static_cast<int64_t>(exact));
    remainders.emplace_back(exact - std::floor(exact), shares.size() - 1);
    left -= shares.back();
  }
  std::stable_sort(remainders.begin(), remainders.end(), [](auto& a, auto& b) { return a.first > b.first; });
  for (size_t i = 0; left > 0; ++i, --left) ++shares[remainders[i % remainders.size()].second];
  return shares;
}

std::vector<int64_t> grouped_order(const std::vector<SampleGroup>& groups, uint64_t seed, int64_t epoch) {
  const std::vector<int64_t> shares = shares_of(groups);
  std::vector<int64_t> drawn;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto size = static_cast<int64_t>(groups[i].samples.size());
    const uint64_t group_seed = SplitMix64({seed, i}).next();
    int64_t at = epoch * shares[i], left = shares[i];  // in all passes of the group, one after the other
    while (left > 0) {
      const std::vector<int64_t> order = sample_order(size, group_seed, at / size, /*shuffle=*/true);
      const int64_t first = at % size, count = std::min(left, size - first);
      for (int64_t k = first; k < first + count; ++k)
        drawn.push_back(groups[i].samples[static_cast<size_t>(order[static_cast<size_t>(k)])]);
      at += count;
      left -= count;
    }
  }
  std::vector<int64_t> order = sample_order(static_cast<int64_t>(drawn.size()), seed, epoch, /*shuffle=*/true);
  for (int64_t& sample : order) sample = drawn[static_cast<size_t>(sample)];
  return order;
}

std::vector<int64_t> length_order(const Dataset& data, std::vector<int64_t> order, int64_t batch, uint64_t seed,
                                  int64_t epoch) {
  constexpr int64_t kBatches = 50, kLeastWindows = 4;  // as transformers' group_by_length has them
  const auto size = std::ssize(order);
  const int64_t window = batch * std::clamp<int64_t>(size / (batch * kLeastWindows), 1, kBatches);
  for (int64_t begin = 0; begin < size; begin += window) {
    std::stable_sort(order.begin() + begin, order.begin() + std::min(begin + window, size),
                     [&](int64_t a, int64_t b) { return data.filled(a) > data.filled(b); });
  }
  const uint64_t batches_seed = SplitMix64({seed, kLengthOrder}).next();
  const std::vector<int64_t> batches = sample_order(size / batch, batches_seed, epoch, /*shuffle=*/true);
  std::vector<int64_t> grouped;
  grouped.reserve(order.size());
  for (const int64_t i : batches)
    grouped.insert(grouped.end(), order.begin() + i * batch, order.begin() + (i + 1) * batch);
  grouped.insert(grouped.end(), order.begin() + std::ssize(batches) * batch, order.end());
  return grouped;
}

}  // namespace onnx_train
