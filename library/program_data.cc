#include "library/program_data.h"

#include <algorithm>

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

RunData program_data(onnx_train_session* session, const onnx_train_data& data, const std::vector<InputSpec>& inputs,
                     const Preprocess& preprocess, const std::string& augment, bool trains, const char* name,
                     DataNotes* notes) {
  const onnx_train_data given = copy_of(data);
  if (given.next) {
    if (!augment.empty()) throw UsageError("--augment changes pictures of files or arrays, no batches of the program");
    return {name, {}, [=] { return std::make_unique<ProgramBatches>(session, given, inputs, preprocess); }};
  }
  if (given.num_arrays == 0 && !given.dataset) throw UsageError("the data have neither arrays, batches nor files");
  DataArrays arrays;
  if (given.dataset) {
    arrays = given.dataset->read;
    if (trains) notes->insert(notes->end(), arrays.notes.begin(), arrays.notes.end());
  } else {
    arrays = arrays_of(views_of(given.arrays, given.num_arrays));
  }
  return {given.dataset ? given.dataset->path : name,
          make_dataset(std::move(arrays), inputs, preprocess, session->session.model(), augment, trains, notes)};
}

std::string hint_of(const onnx_train_data& given, const RunData& read, const Session& session) {
  const std::string text = copy_of(given).dataset ? bytes_hint(*read.dataset, session.model()) : "";
  return text.empty() ? "" : concat(read.name, ": ", text);
}

}  // namespace onnx_train
