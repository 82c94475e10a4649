#include "runtime/runs/run_data.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"
#include "runtime/data/loading/data_check.h"
#include "runtime/data/selection.h"

namespace onnx_train {

std::unique_ptr<BatchSource> RunData::for_training(const Session& session, const TrainerOptions& options) const {
  if (stream) return stream->batches(options.batch_size, options.seed, options.shuffle, options.samples.drop_last);
  if (!dataset) return batches();
  return std::make_unique<DatasetBatches>(&*dataset, session.model(), training_entry(session), options.batch_size,
                                          options.seed, options.shuffle, options.samples);
}

std::unique_ptr<BatchSource> RunData::for_evaluation(const Session& session, int64_t batch_size) const {
  if (!dataset) return batches();
  return std::make_unique<DatasetBatches>(&*dataset, session.model(), batch_size);
}

void RunData::check(const Session& session, const EntryName& entry, std::vector<std::string>* checked) const {
  if (!dataset) return;
  const std::string& identity = dataset->fingerprint();
  if (std::count(checked->begin(), checked->end(), identity) > 0) return;
  const std::string fault = DataCheck(&*dataset, session.model(), entry).refusal("--no-data-check");
  if (!fault.empty()) fail_as(ErrorCode::kData, name, ": ", fault);
  checked->push_back(identity);
}

namespace {

// "--limit, --val-split": the options of samples that are given.
std::string given_among(SampleOptions samples) {
  std::string names;
  for (const Setting& option : fixed_settings(sample_options(&samples))) {
    if (option.value != "none") names += concat(names.empty() ? "--" : ", --", option.name);
  }
  return names;
}

}  // namespace

void TrainingData::select(const SampleOptions& samples, uint64_t seed, std::optional<int64_t> batch_size) {
  const std::string given = given_among(samples);
  if (given.empty()) return;
  if (!training.dataset) {
    throw UsageError(concat(
        given, ": which samples there are is said of arrays and files; batches of the program are what they are"));
  }
  const bool is_split = splits(samples);
  const bool has_order = samples.class_balance || samples.group_by_length || samples.overfit_batches > 0;
  if (training.stream && (samples.skip > 0 || samples.limit > 0 || is_split || has_order)) {
    throw UsageError(
        concat(given, ": a stream has the samples that come; --shuffle-buffer and --drop-last are for it"));
  }
  if (samples.skip == 0 && samples.limit == 0 && !is_split && samples.overfit_batches == 0) return;
  const Dataset& all = *training.dataset;
  const SampleRows rows =
      select_samples(all.num_samples(), samples, seed, batch_size.value_or(all.usual_batch()), all.fixed_batch());
  if (is_split) evaluation->dataset = evaluation->dataset->select(rows.evaluation);
  training.dataset = all.select(rows.training);
}

}  // namespace onnx_train
