#include "library/program_data.h"

#include <algorithm>

#include "runtime/data/data_check.h"
#include "runtime/data/selection.h"

namespace onnx_train {
namespace {

// Batches that the program makes.
class ProgramBatches : public BatchSource {
 public:
  ProgramBatches(onnx_train_session* session, const onnx_train_data& data, std::vector<InputSpec> inputs,
                 const Preprocess& preprocess)
      : session_(*session), data_(data), inputs_(std::move(inputs)), preprocess_(preprocess) {}

  // Their number, if it is known; their contents are not compared.
  std::string identity() const override {
    return data_.batches > 0 ? concat(data_.batches, " batches of the program") : BatchSource::identity();
  }
  std::string scale() const override { return preprocess_.option(); }
  std::string preprocess() const override {
    return preprocess_.steps_option().empty() ? "none" : preprocess_.steps_option();
  }

  int64_t batches_per_epoch() const override { return data_.batches; }

  void start(int64_t epoch, int64_t skip) override {
    if (data_.begin) call(&session_, [&] { return data_.begin(data_.user, epoch); });
    TensorMap unused;
    while (skip > 0) {
      const int64_t samples = next(&unused);
      if (samples == 0 || samples > skip)
        fail("cannot resume: the batches of the data are not those of the checkpoint");
      skip -= samples;
    }
  }

  int64_t next(TensorMap* batch) override {
    const onnx_train_tensor* inputs = nullptr;
    size_t count = 0;
    session_.session.wait_for_inputs();  // the program may now change those of the last batch
    call(&session_, [&] { return data_.next(data_.user, &inputs, &count); });
    if (count == 0) return 0;
    *batch = inputs_of_run(&session_.session, inputs, count);
    apply(preprocess_, inputs_, batch);
    const auto first = std::find_if(inputs, inputs + count, [](const onnx_train_tensor& t) { return t.rank > 0; });
    const int64_t samples = first == inputs + count ? 1 : first->shape[axis_of(*first)];
    if (samples < 1) fail_as(ErrorCode::kData, "input '", first->name, "' of a batch has no samples");
    return samples;
  }

 private:
  // Of a batch's tensor, along which its samples are.
  size_t axis_of(const onnx_train_tensor& tensor) const {
    const auto spec = std::ranges::find(inputs_, tensor.name, &InputSpec::name);
    const size_t axis = spec == inputs_.end() ? 0 : spec->sample_axis;
    return axis < static_cast<size_t>(tensor.rank) ? axis : 0;
  }

  onnx_train_session& session_;
  const onnx_train_data data_;
  const std::vector<InputSpec> inputs_;
  const Preprocess preprocess_;
};

}  // namespace

ProgramData::ProgramData(onnx_train_session* session, const onnx_train_data& given, std::vector<InputSpec> inputs,
                         const Preprocess& preprocess, const std::string& augment, bool trains, DataNotes* notes)
    : session_(*session), data_(copy_of(given)), inputs_(std::move(inputs)), preprocess_(preprocess) {
  if (data_.next) {
    if (!augment.empty()) throw UsageError("augment changes pictures of files or arrays, no batches of the program");
    return;
  }
  if (data_.num_arrays == 0 && !data_.dataset) throw UsageError("the data have neither arrays, batches nor files");
  DataArrays arrays;
  if (data_.dataset) {
    arrays = data_.dataset->read;
    if (trains) notes->insert(notes->end(), arrays.notes.begin(), arrays.notes.end());
  } else {
    arrays.tensors = views_of(data_.arrays, data_.num_arrays);
  }
  dataset_.emplace(
      make_dataset(std::move(arrays), inputs_, preprocess, session->session.model(), augment, trains, notes));
}

void ProgramData::select(const TrainerOptions& options, std::optional<int64_t> batch_size, ProgramData* data,
                         std::optional<ProgramData>* evaluation) {
  const SampleOptions& samples = options.samples;
  const bool is_given =
      samples.limit > 0 || splits(samples) || samples.overfit_batches > 0 || samples.class_balance || samples.drop_last;
  if (!is_given) return;
  if (!data->dataset_) {
    throw UsageError(
        "limit, val-split, folds, overfit-batches, class-balance and drop-last select among the samples of "
        "arrays and files; batches of the program are what they are");
  }
  const bool is_split = splits(samples);
  SelectedData selected = select_samples(*data->dataset_, is_split ? &*(*evaluation)->dataset_ : nullptr, samples,
                                         options.seed, batch_size);
  data->dataset_ = std::move(selected.training);
  if (is_split) (*evaluation)->dataset_ = std::move(selected.evaluation);
}

std::string ProgramData::hint() const {
  const std::string text = data_.dataset ? bytes_hint(*dataset_, session_.session.model()) : "";
  return text.empty() ? "" : concat(data_.dataset->path, ": ", text);
}

void ProgramData::check(const std::string& entry, std::vector<std::string>* checked) const {
  if (!dataset_) return;
  const std::string& identity = dataset_->fingerprint();
  if (std::count(checked->begin(), checked->end(), identity) > 0) return;
  const std::string fault = DataCheck(&*dataset_, session_.session.model(), entry).refusal("no-data-check");
  if (fault.empty()) return checked->push_back(identity);
  const std::string where = data_.dataset ? data_.dataset->path : entry == "evaluate" ? "evaluation data" : "data";
  fail_as(ErrorCode::kData, where, ": ", fault);
}
std::unique_ptr<BatchSource> ProgramData::training(const TrainerOptions& options) const {
  if (!dataset_) return batches();
  return std::make_unique<DatasetBatches>(&*dataset_, session_.session.model(), training_entry(session_.session),
                                          options.batch_size, options.seed, options.shuffle, options.samples);
}
std::unique_ptr<BatchSource> ProgramData::evaluation(int64_t batch_size) const {
  if (!dataset_) return batches();
  return std::make_unique<DatasetBatches>(&*dataset_, session_.session.model(), batch_size);
}

std::unique_ptr<BatchSource> ProgramData::batches() const {
  return std::make_unique<ProgramBatches>(&session_, data_, inputs_, preprocess_);
}

}  // namespace onnx_train
