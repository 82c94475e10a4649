// The training loop of the C interface, and evaluation and prediction: over arrays, batches and files of the program.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "library/guard.h"
#include "library/handles.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/table_metadata.h"
#include "runtime/data/data_check.h"
#include "runtime/data/prediction.h"
#include "runtime/data/selection.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/fingerprint.h"
#include "runtime/training/trainer.h"

namespace onnx_train {
namespace {

struct FitSettings {
  TrainerOptions trainer;
  ScheduleSettings schedule;
  bool no_shuffle = false, resume = false, overwrite = false, no_data_check = false;
  DataOptions reading;
  std::optional<int64_t> batch_size;
};

std::vector<CommandOption> fit_options(FitSettings* s) {
  TrainerOptions& t = s->trainer;
  std::vector<CommandOption> options = {{"--epochs", {&t.epochs, kCount}, ""},
                                        {"--steps", {&t.steps, kCount}, ""},
                                        {"--time-limit", {&t.time_limit, kPositive}, ""},
                                        {"--batch-size", {&s->batch_size, kCount}, ""},
                                        {"--accumulate", {&t.accumulate, kCount}, ""},
                                        {"--clip", {&t.clip_norm, kPositive}, ""},
                                        {"--seed", &t.seed, ""},
                                        {"--no-shuffle", &s->no_shuffle, ""},
                                        {"--scale", {&s->reading.scales, check_scale}, ""},
                                        {"--preprocess", &s->reading.preprocess, ""},
                                        {"--augment", &s->reading.augment, ""},
                                        {"--no-data-check", &s->no_data_check, ""},
                                        {"--eval-every", {&t.eval_every, kCount}, ""},
                                        {"--best", &t.best, ""},
                                        {"--early-stop", {&t.early_stop, kCount}, ""},
                                        {"--checkpoint-every", {&t.checkpoint_every, kCount}, ""},
                                        {"--out", &t.folder, ""},
                                        {"--resume", &s->resume, ""},
                                        {"--overwrite", &s->overwrite, ""},
                                        {"--wait-for-steps", &t.wait_for_steps, ""}};
  for (CommandOption& option : schedule_options(&s->schedule)) options.push_back(std::move(option));
  return options;
}

// The rate that the model was built with.
double built_rate(const Model& model) {
  for (const char* entry : {"step", "apply"}) {
    const EntryPoint* point = model.find_entry_point(entry);
    if (!point) continue;
    for (const InputSpec& spec : entry_inputs(model, entry)) {
      const Value* value = spec.role == roles::kLearningRate ? point->algorithm->find(spec.name) : nullptr;
      if (value && value->is_initializer()) return contents_of(*value).at(0);
    }
  }
  return Schedule().peak;
}

FitSettings read_fit_settings(const onnx_train_option* given, size_t count, const Model& model) {
  FitSettings settings;
  TrainerOptions& t = settings.trainer;
  read_options(given, count, joined(fit_options(&settings), sample_options(&t.samples)));
  t.shuffle = !settings.no_shuffle;
  t.schedule = resolve(settings.schedule, built_rate(model));
  if (t.epochs == 0 && t.steps == 0 && t.time_limit == 0) {
    throw UsageError("a training needs an end: give epochs, steps or time-limit");
  }
  t.recorded = fixed_settings(sample_options(&t.samples));
  return settings;
}

// A struct of the caller, whose version of it may be shorter.
template <typename T>
T copy_of(const T& given) {
  T copy{};
  std::memcpy(&copy, &given, std::min(given.size, sizeof copy));
  return copy;
}

// What a callback returns. The callback may use the session, which is not busy meanwhile.
template <typename F>
onnx_train_next call(onnx_train_session* session, const F& callback) {
  session->busy = false;
  const onnx_train_next next = callback();
  if (session->busy.exchange(true)) throw UsageError("another thread uses the session while it trains");
  if (next == ONNX_TRAIN_FAIL) throw UsageError("a callback of the program failed");
  return next;
}

// Batches that the program makes.
class ProgramBatches : public BatchSource {
 public:
  ProgramBatches(onnx_train_session* session, const onnx_train_data& data, std::vector<InputSpec> inputs,
                 const Preprocess& preprocess)
      : session_(*session), data_(data), inputs_(std::move(inputs)), preprocess_(preprocess) {}

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
    const int64_t samples = first == inputs + count ? 1 : first->shape[0];
    if (samples < 1) fail_as(ErrorCode::kData, "input '", first->name, "' of a batch has no samples");
    return samples;
  }

 private:
  onnx_train_session& session_;
  const onnx_train_data data_;
  const std::vector<InputSpec> inputs_;
  const Preprocess preprocess_;
};

// The data of a program and, if they are arrays or files, what the trainer reads of them.
class ProgramData {
 public:
  // `inputs` are the entry_inputs of the entry point that reads the data; `notes` say what is done to pictures.
  ProgramData(onnx_train_session* session, const onnx_train_data& given, std::vector<InputSpec> inputs,
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

  // The samples that options leave of it, and those for the evaluation.
  static void select(const TrainerOptions& options, std::optional<int64_t> batch_size, ProgramData* data,
                     std::optional<ProgramData>* evaluation) {
    const SampleOptions& samples = options.samples;
    const bool is_given = samples.limit > 0 || splits(samples) || samples.overfit_batches > 0 ||
                          samples.class_balance || samples.drop_last;
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

  // "" or what a user should know of files: the program knows what its arrays hold.
  std::string hint() const {
    const std::string text = data_.dataset ? bytes_hint(*dataset_, session_.session.model()) : "";
    return text.empty() ? "" : concat(data_.dataset->path, ": ", text);
  }

  // Throws Error that names the first element that the model cannot use.
  void check(const std::string& entry) const {
    if (!dataset_) return;
    const std::string fault = DataCheck(&*dataset_, session_.session.model(), entry).first_fault();
    if (fault.empty()) return;
    const std::string where = data_.dataset ? data_.dataset->path : entry == "evaluate" ? "evaluation data" : "data";
    fail_as(ErrorCode::kData, where, ": ", fault, " (no-data-check trains on it nevertheless)");
  }
  const Dataset* dataset() const { return dataset_ ? &*dataset_ : nullptr; }
  std::unique_ptr<BatchSource> training(const TrainerOptions& options) const {
    if (!dataset_) return batches();
    return std::make_unique<DatasetBatches>(&*dataset_, session_.session.model(), training_entry(session_.session),
                                            options.batch_size, options.seed, options.shuffle, options.samples);
  }
  std::unique_ptr<BatchSource> evaluation(int64_t batch_size) const {
    if (!dataset_) return batches();
    return std::make_unique<DatasetBatches>(&*dataset_, session_.session.model(), batch_size);
  }

 private:
  std::unique_ptr<BatchSource> batches() const {
    return std::make_unique<ProgramBatches>(&session_, data_, inputs_, preprocess_);
  }

  onnx_train_session& session_;
  const onnx_train_data data_;
  const std::vector<InputSpec> inputs_;
  const Preprocess preprocess_;
  std::optional<Dataset> dataset_;
};

class ProgramEvents : public TrainerEvents {
 public:
  ProgramEvents(onnx_train_session* session, const onnx_train_observer* observer)
      : session_(*session), observer_(observer ? copy_of(*observer) : onnx_train_observer{}) {}

  void on_step(const StepReport& r) override {
    const onnx_train_step step = {r.step,
                                  r.epoch,
                                  r.samples,
                                  r.loss,
                                  r.learning_rate,
                                  r.accuracy.value_or(NAN),
                                  r.grad_norm,
                                  r.milliseconds / 1e3,
                                  r.loss_scale.value_or(0),
                                  r.skipped ? 1 : 0};
    obey(observer_.on_step, &step);
  }
  void on_evaluation(const EvaluationReport& r) override {
    std::vector<onnx_train_metric> metrics;
    for (const auto& [name, value] : r.evaluation) metrics.push_back({name.c_str(), value});
    const std::vector<onnx_train_tensor> tables = described(r.tables);
    const onnx_train_evaluation evaluation = {r.step,         r.epoch,        r.train_loss,  metrics.data(),
                                              metrics.size(), r.best ? 1 : 0, tables.data(), tables.size()};
    obey(observer_.on_evaluation, &evaluation);
  }
  void on_checkpoint(const std::string& path) override { obey(observer_.on_checkpoint, path.c_str()); }
  void on_note(const std::string& text) override { obey(observer_.on_note, text.c_str()); }
  void on_notes(const std::vector<std::string>& notes) {
    for (const std::string& note : notes) {
      if (!note.empty()) on_note(note);
    }
  }
  bool stop() const override { return stop_; }
  const std::atomic<bool>& interrupt() const { return interrupt_; }

 private:
  template <typename T>
  void obey(onnx_train_next (*callback)(void*, const T*), const T* report) {
    if (!callback) return;
    const onnx_train_next next = call(&session_, [&] { return callback(observer_.user, report); });
    if (next == ONNX_TRAIN_STOP) stop_ = true;
    if (next == ONNX_TRAIN_INTERRUPT) interrupt_ = true;
  }

  onnx_train_session& session_;
  const onnx_train_observer observer_;
  bool stop_ = false;
  std::atomic<bool> interrupt_{false};
};

// Reads the checkpoint's state into the session; returns its position.
TrainingPosition restore(Session* session, const std::string& path) {
  Model model = load_training_model(path);
  const auto position = checkpoint_position(model);
  if (!position) fail(path, " does not say where its training stands; it is no checkpoint");
  for (const char* what : {"onnx_train.loss", "onnx_train.optimizer", "onnx_train.groups", "onnx_train.layer_decay",
                           "onnx_train.clip_value", "onnx_train.ema", "onnx_train.mode", "onnx_train.precision"}) {
    const std::string before = model.metadata(what), now = session->model().metadata(what);
    if (before != now) fail("cannot resume: ", path, " has ", what, " ", before, ", the session ", now);
  }
  SessionOptions options;
  options.device = &session->device();
  const Session saved(std::move(model), options);
  std::vector<std::pair<std::string, Tensor>> states;
  for (const std::string& name : session->state().names()) states.emplace_back(name, saved.contents(name));
  for (const auto& [name, value] : states) session->state().set(name, value);
  session->set_metadata(kPreprocess, saved.model().metadata(kPreprocess));
  for (const char* key : kTableMetadata) {
    if (const std::string text = saved.model().metadata(key); !text.empty()) session->set_metadata(key, text);
  }
  return *position;
}

// The position to go on from, if there is one. Fills in the identity of the model that the run starts from.
std::optional<TrainingPosition> prepare_run(FitSettings* settings, Session* session) {
  const std::string& folder = settings->trainer.folder;
  if (folder.empty()) {
    if (settings->resume) throw UsageError("resume needs the folder of a run: out");
    return std::nullopt;
  }
  const std::string last = folder + "/last.onnx";
  const bool exists = std::filesystem::exists(last);
  if (exists && !settings->resume && !settings->overwrite) {
    throw UsageError(folder + " holds a run; go on with resume, start anew with overwrite, or take another folder");
  }
  settings->trainer.model = fingerprint(session->snapshot());
  if (!exists || !settings->resume) {
    std::filesystem::create_directories(folder);
    return std::nullopt;
  }
  const auto given = checkpoint_position(session->model());
  TrainingPosition position = restore(session, last);
  const auto model = position.settings.find("model");
  if (given && model != position.settings.end() && given->settings.count("model") > 0 &&
      given->settings.at("model") == model->second) {
    settings->trainer.model = model->second;  // the session comes from a checkpoint of the same run
  }
  return position;
}

onnx_train_stop_reason public_reason(StopReason reason) {
  switch (reason) {
    case StopReason::kFinished: return ONNX_TRAIN_FINISHED;
    case StopReason::kInterrupted: return ONNX_TRAIN_INTERRUPTED;
    case StopReason::kEarlyStop: return ONNX_TRAIN_EARLY_STOP;
    case StopReason::kTimeLimit: return ONNX_TRAIN_TIME_LIMIT;
    case StopReason::kStopped: break;
  }
  return ONNX_TRAIN_STOPPED;
}

onnx_train_stop_reason fit(onnx_train_session* s, const onnx_train_data* training, const onnx_train_data* evaluation,
                           FitSettings settings, const onnx_train_observer* observer) {
  Session& session = s->session;
  const auto position = prepare_run(&settings, &session);  // a run that goes on has its scale
  const std::string entry = training_entry(session);
  std::string note;  // the program knows which scales it gives
  const std::vector<InputSpec> inputs = entry_inputs(session.model(), entry);
  const Preprocess preprocess = preprocess_of(session.model(), settings.reading, inputs, &note);
  session.set_metadata(kPreprocess, preprocess.json());
  TrainerOptions& options = settings.trainer;
  check_samples(options.samples, evaluation != nullptr);
  DataNotes notes;
  ProgramData data(s, required(training, "the data"), inputs, preprocess, settings.reading.augment, /*trains=*/true,
                   &notes);
  if (data.dataset()) {
    session.set_metadata(kPreprocess, data.dataset()->preprocess().json());
    for (const auto& [key, value] : data.dataset()->metadata()) session.set_metadata(key, value);
  }
  std::optional<ProgramData> eval_data;
  if (splits(options.samples)) evaluation = training;
  if (evaluation) {
    eval_data.emplace(s, *evaluation, entry_inputs(session.model(), "evaluate"), Preprocess(session.model()), "",
                      /*trains=*/false, &notes);
  }
  ProgramData::select(options, settings.batch_size, &data, &eval_data);
  if (!settings.no_data_check) {
    data.check(entry);
    if (eval_data) eval_data->check("evaluate");
  }
  options.batch_size = settings.batch_size.value_or(data.dataset() ? data.dataset()->usual_batch() : kUsualBatch);
  auto evaluation_batches = eval_data ? eval_data->evaluation(options.batch_size) : nullptr;
  Trainer trainer(&session, data.training(options), std::move(evaluation_batches), options);
  if (position) trainer.resume(*position);
  ProgramEvents events(s, observer);
  events.on_notes(notes);
  if (!settings.reading.says_how()) events.on_notes({data.hint(), eval_data ? eval_data->hint() : ""});
  return public_reason(trainer.run(&events, events.interrupt()));
}

// Keeps metrics for the program, and describes them.
void give_metrics(onnx_train_session* s, Metrics values, MetricTables tables, const onnx_train_metric** metrics,
                  size_t* count) {
  s->evaluated = std::move(values);
  s->metrics.clear();
  for (const auto& [name, value] : s->evaluated) s->metrics.push_back({name.c_str(), value});
  s->by_class = std::move(tables);
  s->tables = described(s->by_class);
  *metrics = s->metrics.data();
  *count = s->metrics.size();
}

// The data of onnx_train_evaluate and onnx_train_predict, and how they are to be read.
struct WholeData {
  WholeData(onnx_train_session* session, const onnx_train_data* given, const std::string& entry,
            const onnx_train_option* options, size_t count, const onnx_train_observer* observer)
      : events(session, observer) {
    DataOptions reading;
    read_options(options, count,
                 {{"--batch-size", {&batch_size, kCount}, ""},
                  {"--scale", {&reading.scales, check_scale}, ""},
                  {"--preprocess", &reading.preprocess, ""}});
    const Model& model = session->session.model();
    const std::vector<InputSpec> inputs = entry_inputs(model, entry);
    std::string note;
    const Preprocess preprocess = preprocess_of(model, reading, inputs, &note);
    DataNotes notes;
    data.emplace(session, required(given, "the data"), inputs, preprocess, "", /*trains=*/false, &notes);
    events.on_notes(notes);
    events.on_notes({note, reading.says_how() ? "" : data->hint()});
  }

  ProgramEvents events;
  int64_t batch_size = 128;
  std::optional<ProgramData> data;
};

}  // namespace
}  // namespace onnx_train

using namespace onnx_train;

extern "C" {

onnx_train_status onnx_train_fit(onnx_train_session* session, const onnx_train_data* training,
                                 const onnx_train_data* evaluation, const onnx_train_option* options, size_t count,
                                 const onnx_train_observer* observer, onnx_train_stop_reason* reason) {
  return in_session(session, [&](onnx_train_session& s) {
    const FitSettings settings = read_fit_settings(options, count, s.session.model());
    const onnx_train_stop_reason stopped = fit(&s, training, evaluation, settings, observer);
    if (reason) *reason = stopped;
  });
}

onnx_train_status onnx_train_evaluate(onnx_train_session* session, const onnx_train_data* data,
                                      const onnx_train_option* options, size_t count,
                                      const onnx_train_observer* observer, const onnx_train_metric** metrics,
                                      size_t* num_metrics) {
  return in_session(session, [&](onnx_train_session& s) {
    required(metrics, "where the metrics go");
    required(num_metrics, "where their number goes");
    WholeData whole(&s, data, "evaluate", options, count, observer);
    EvaluationResult result = evaluate(&s.session, whole.data->evaluation(whole.batch_size).get());
    whole.events.on_notes(result.notes);
    give_metrics(&s, std::move(result.metrics), std::move(result.tables), metrics, num_metrics);
  });
}

onnx_train_status onnx_train_session_metrics(onnx_train_session* session, const onnx_train_tensor* statistics,
                                             size_t count, const onnx_train_metric** metrics, size_t* num_metrics) {
  return in_session(session, [&](onnx_train_session& s) {
    required(metrics, "where the metrics go");
    required(num_metrics, "where their number goes");
    MetricSums sums(s.session.model());
    sums.add(views_of(statistics, count));
    Metrics values;
    MetricTables tables;
    sums.finish(&values, &tables);
    give_metrics(&s, std::move(values), std::move(tables), metrics, num_metrics);
  });
}

onnx_train_status onnx_train_session_metric_tables(onnx_train_session* session, const onnx_train_tensor** tables,
                                                   size_t* count) {
  return in_session(session, [&](onnx_train_session& s) {
    required(tables, "where the tables go") = s.tables.data();
    required(count, "where their number goes") = s.tables.size();
  });
}

onnx_train_status onnx_train_predict(onnx_train_session* session, const onnx_train_data* data,
                                     const onnx_train_option* options, size_t count,
                                     const onnx_train_observer* observer, const onnx_train_tensor** outputs,
                                     size_t* num_outputs) {
  return in_session(session, [&](onnx_train_session& s) {
    required(outputs, "where the outputs go");
    required(num_outputs, "where their number goes");
    const WholeData whole(&s, data, "predict", options, count, observer);
    const Dataset* dataset = whole.data->dataset();
    if (!dataset) throw UsageError("a prediction takes arrays or files, no batches of the program");
    s.predicted = predict(&s.session, *dataset, whole.batch_size);
    s.outputs = described(s.predicted);
    *outputs = s.outputs.data();
    *num_outputs = s.outputs.size();
  });
}
}
