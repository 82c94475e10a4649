#include "runtime/data/loading/batch_source.h"

#include <algorithm>
#include <span>

#include "onnx_passes/distribution/pipeline_stages.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "runtime/data/loading/data_check.h"

namespace onnx_train {

std::string BatchSource::describe(int64_t first, int64_t count) const {
  return concat("in the samples ", first + 1, " to ", first + count, " of the epoch");
}

void BatchSource::share_out(const Rounds& rounds) {
  if (rounds.ranks > 1) fail_as(ErrorCode::kUsage, "several ranks train on data sets, not on batches of a program");
}

std::vector<int64_t> BatchSource::next_round(TensorMap* batch) {
  const int64_t samples = next(batch);
  return samples == 0 ? std::vector<int64_t>() : std::vector{samples};
}

DatasetBatches::DatasetBatches(const Dataset* data, const Model& model, const EntryName& entry, int64_t batch_size,
                               uint64_t seed, bool shuffle, const SampleOptions& options)
    : data_(*data),
      model_(model),
      entry_(entry),
      batch_size_(batch_size),
      seed_(seed),
      shuffle_(shuffle),
      augments_(true),
      groups_by_length_(options.group_by_length),
      batches_(data, options.group_by_length) {
  const int64_t fixed = data_.fixed_batch(), n = data_.num_samples();
  if (batch_size < 1) fail_as(ErrorCode::kUsage, "the batch size must be at least 1");
  if (fixed > 0 && batch_size != fixed) {
    fail_as(ErrorCode::kBatchSize, "the model's batch size is fixed at ", fixed, ", not ", batch_size,
            "; build it with --batch dynamic");
  }
  if (batch_size > n) {
    fail_as(ErrorCode::kBatchSize, "the batch size is ", batch_size, ", but the data has ", n,
            n == 1 ? " sample" : " samples");
  }
  samples_ = fixed > 0 || options.drop_last ? n / batch_size * batch_size : n;
  if (groups_by_length_ && !shuffle)
    throw UsageError("--group-by-length puts samples into an order, and --no-shuffle leaves theirs: give one");
  if (groups_by_length_ && data_.filled(0) < 0)
    throw UsageError("--group-by-length is for documents as samples: --packing none of texts, or conversations");
  if (options.class_balance && !shuffle) throw UsageError("--class-balance draws samples, and --no-shuffle does not");
  if (options.class_balance) groups_ = groups_by_class(data_);
  if (data_.parts().empty()) return;
  if (options.class_balance) throw UsageError("--class-balance and weights of --data both say what is drawn: give one");
  if (!shuffle) throw UsageError("weights of --data say what is drawn, and --no-shuffle draws nothing: give one");
  groups_ = groups_by_part(data_);
}

DatasetBatches::DatasetBatches(const Dataset* data, const Model& model, int64_t batch_size)
    : data_(*data),
      model_(model),
      entry_(Entry::kEvaluate),
      batch_size_(data->fixed_batch() > 0 ? data->fixed_batch() : batch_size),
      samples_(data->num_samples()),
      batches_(data) {}

int64_t DatasetBatches::batches_per_epoch() const {
  return samples_ / batch_size_ + (samples_ % batch_size_ != 0 ? 1 : 0);
}

void DatasetBatches::start(int64_t epoch, int64_t skip) {
  if (data_.fixed_batch() > 0 && samples_ % batch_size_ != 0) {
    fail_as(ErrorCode::kFixedBatch, "the model's batch size is fixed at ", batch_size_, ", and ", samples_,
            " samples leave a short last batch; build it with --batch dynamic");
  }
  if (order_epoch_ != epoch) {
    order_ = groups_.empty() ? sample_order(data_.num_samples(), seed_, epoch, shuffle_)
                             : grouped_order(groups_, seed_, epoch);
    if (groups_by_length_) order_ = length_order(data_, std::move(order_), batch_size_, seed_, epoch);
  }
  order_epoch_ = epoch;
  given_ = skip;
  batch_of_step_ = 0;
  const auto next_rows = [this, at = skip, batch = int64_t{0}, given = size_t{0}]() mutable {
    const std::vector<int64_t> sizes = rounds_.sizes(batch, samples_ - at, batch_size_);
    if (sizes.empty()) return std::vector<int64_t>();
    const std::vector<size_t> own = rounds_.own(sizes);
    const size_t i = own[given];
    const auto begin = order_.begin() + at + static_cast<int64_t>(i) * batch_size_;
    std::vector<int64_t> rows(begin, begin + sizes[i]);
    if (++given == own.size()) {
      given = 0;
      for (const int64_t size : sizes) at += size;
      batch = (batch + std::ssize(sizes)) % rounds_.per_step;
    }
    return rows;
  };
  batches_.start(next_rows, augments_ ? std::optional(AugmentKey{seed_, epoch}) : std::nullopt);
}

int64_t DatasetBatches::next(TensorMap* batch) { return batches_.next(batch); }

std::vector<int64_t> DatasetBatches::next_round(TensorMap* batch) {
  const std::vector<int64_t> sizes = rounds_.sizes(batch_of_step_, samples_ - given_, batch_size_);
  if (sizes.empty()) return {};
  if (rounds_.at_once == 1) {
    if (next(batch) == 0) return {};
  } else {
    batch->clear();
    TensorMap one;
    for (int i = 0; i < std::ssize(rounds_.own(sizes)); ++i) {
      next(&one);
      for (const auto& [name, value] : one) batch->emplace(micro_batch_input(name, i), value.clone());
    }
  }
  batch_of_step_ = (batch_of_step_ + std::ssize(sizes)) % rounds_.per_step;
  for (const int64_t size : sizes) given_ += size;
  return sizes;
}

std::string DatasetBatches::describe(int64_t first, int64_t count) const {
  std::vector<int64_t> rows(order_.begin() + first, order_.begin() + first + count);
  for (int64_t& row : rows) row = data_.row_of(row);
  if (!data_.makes_rows()) return describe_samples(rows.data(), count);
  constexpr size_t kShown = 8;
  const std::span<const int64_t> all(rows);
  return "in the batch of " + first_few(all, kShown, [&](int64_t row) { return data_.origin(row); });
}

std::string DatasetBatches::preprocess() const {
  const std::string steps = data_.preprocess().steps_option();
  return steps.empty() ? "none" : steps;
}

std::string DatasetBatches::fault(int64_t first, int64_t count) const {
  return DataCheck(&data_, model_, entry_).first_fault(order_.data() + first, count);
}

std::string DatasetBatches::identity() const {
  std::string weights;
  for (const DataPart& part : data_.parts()) {
    weights += concat(weights.empty() ? ", in parts " : ", ", part.rows, ":", number_text(part.weight));
  }
  return concat(data_.num_samples(), " samples (", data_.fingerprint(), ")", weights);
}

}  // namespace onnx_train
