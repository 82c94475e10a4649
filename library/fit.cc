// The training loop of the C interface: over arrays, batches and files of the program.
#include <filesystem>

#include "kernels/collectives.h"
#include "library/options.h"
#include "library/program_data.h"
#include "onnx_passes/io/file.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/table_metadata.h"
#include "runtime/data/images/files.h"
#include "runtime/data/selection.h"
#include "runtime/distribution/same_start.h"
#include "runtime/runs/metrics_log.h"
#include "runtime/runs/resume.h"
#include "runtime/runs/run_folder.h"
#include "runtime/training/batch_search.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/controls.h"
#include "runtime/training/fingerprint.h"
#include "runtime/training/rate_search.h"
#include "runtime/training/run_lock.h"

namespace onnx_train {
namespace {

FitSettings read_fit_settings(const onnx_train_option* given, size_t count) {
  FitSettings settings;
  read_options(given, count, options_of_fit(&settings));
  for (size_t i = 0; i < count; ++i) settings.given->insert(given[i].name);
  return settings;
}

// As options.json has them: the names are those of the command, which reads them.
std::vector<CommandOption> recorded_options(FitSettings* s) {
  const std::vector<CommandOption> sources = with_keys(training_options(s), {"data", "eval-data"}),
                                   machine = with_keys(session_options(&s->session), {"device", "threads", "offload"});
  const std::vector<CommandOption> training = taken_by(TakenBy::kAll, options_of_fit(s));
  return joined(joined(joined(sources, machine), training), data_options(&s->reading));
}

// A run that is gone on with.
struct ResumedRun {
  Model model;
  TrainingPosition position;
};

// Reads the checkpoint's state into the session.
void restore(Session* session, const Model& model, const std::string& path) {
  std::map<std::string, const Value*> saved;
  for (const EntryPoint& point : model.entry_points) {
    for (const auto& bindings : {point.update_bindings, point.initialization_bindings}) {
      for (const Binding& binding : bindings) saved[binding.state->name()] = binding.state;
    }
  }
  std::vector<std::pair<std::string, Tensor>> states;
  const StateStore& present = session->state();
  for (size_t i = 0; i < present.names().size(); ++i) {
    const std::string& name = present.names()[i];
    if (!saved.contains(name)) fail("cannot resume: ", path, " has no state '", name, "'");
    states.emplace_back(name, contents_of(*saved.at(name)));
    const Tensor& value = states.back().second;
    if (value.dtype() != present.dtype(i) || value.shape() != present.shape(i))
      fail("cannot resume: ", path, " has another shape or type of state '", name, "'");
  }
  for (const auto& [name, value] : states) session->state().set(name, value);
}

void expect_no_run(const FitSettings& settings) {
  if (settings.overwrite || !path_exists(settings.last_checkpoint())) return;
  throw UsageError(settings.trainer.folder +
                   " holds a run; go on with resume, start anew with overwrite, or take another folder");
}

// The run to go on with, if there is one, whose settings stay where none are given. Locks a folder that is there.
std::optional<ResumedRun> find_run(FitSettings* settings, onnx_train_session* s, RunLock* lock) {
  const std::string& folder = settings->trainer.folder;
  if (folder.empty()) {
    if (settings->resume) throw UsageError("resume needs the folder of a run: out");
    return std::nullopt;
  }
  const bool leads = s->session.rank() == 0;  // rank 0 writes the run's folder
  if (std::error_code error; leads && std::filesystem::is_directory(folder, error)) *lock = RunLock(folder);
  const std::string last = settings->last_checkpoint();
  if (!settings->resume) expect_no_run(*settings);
  if (!settings->resume || !path_exists(last)) return std::nullopt;
  Model model = load_training_model(last);
  TrainingPosition position = position_of_run(model, last);
  expect_same_build(built_with(model), last, built_with(s->session.model()), "the session's model");
  adopt_settings(options_of_fit(settings), position, settings);
  adopt_end(settings);
  return ResumedRun{std::move(model), std::move(position)};
}

// What the run has learned of its data, and the identity of the model that it started from.
void take_over(const ResumedRun& run, Session* session, FitSettings* settings) {
  settings->trainer.model =
      identity_on_resume(settings->trainer.model, checkpoint_position(session->model()), run.position);
  session->set_metadata(kPreprocess, run.model.metadata(kPreprocess));
  for (const char* key : kTableMetadata) {
    if (const std::string text = run.model.metadata(key); !text.empty()) session->set_metadata(key, text);
  }
}

// Puts back what a session says of its data, unless the training for which that changes begins.
class DataMetadata {
 public:
  explicit DataMetadata(Session* session) : session_(session) {
    keep(kPreprocess);
    for (const char* key : kTableMetadata) keep(key);
  }
  ~DataMetadata() {
    for (const auto& [key, value] : before_) {
      if (session_->model().metadata(key) != value) session_->set_metadata(key, value);
    }
  }
  DataMetadata(const DataMetadata&) = delete;
  void begin() { before_.clear(); }

 private:
  void keep(const std::string& key) { before_[key] = session_->model().metadata(key); }

  Session* session_;
  std::map<std::string, std::string> before_;
};

onnx_train_stop_reason public_reason(StopReason reason) {
  switch (reason) {
    case StopReason::kFinished: return ONNX_TRAIN_FINISHED;
    case StopReason::kInterrupted: return ONNX_TRAIN_INTERRUPTED;
    case StopReason::kEarlyStop: return ONNX_TRAIN_EARLY_STOP;
    case StopReason::kTimeLimit: return ONNX_TRAIN_TIME_LIMIT;
    case StopReason::kTarget: return ONNX_TRAIN_TARGET;
    case StopReason::kStopped: break;
  }
  return ONNX_TRAIN_STOPPED;
}

void resolve_batch(FitSettings* settings, Session* session, const ProgramData& data, const ProgramData* evaluation,
                   ProgramEvents* events, Found* found) {
  const Dataset* const dataset = data.dataset();
  if (settings->find_batch) {
    if (session->ranks() > 1) throw UsageError("a batch-size of auto is for one process; give its result");
    if (!dataset)
      throw UsageError("a batch-size of auto is for arrays and files; batches of the program are what they are");
    found->batch =
        find_largest_batch(session, {*dataset, evaluation ? evaluation->dataset() : nullptr,
                                     parse_bytes(settings->memory_limit), !settings->trainer.folder.empty()});
    settings->batch_size = found->batch->batch;
    events->on_note(to_text(*found->batch));
  }
  if (!settings->batch_size) settings->batch_size = dataset ? dataset->usual_batch() : kUsualBatch;
  settings->trainer.batch_size = *settings->batch_size;
}

FoundRate resolve_rate(FitSettings* settings, Session* session, const ProgramData& data, ProgramEvents* events) {
  if (!data.dataset()) throw UsageError("an lr of auto is found on arrays and files, which can be read again");
  FoundRate found = find_rate(session, data.training(settings->trainer), settings->trainer,
                              built_rate(session->model()), events->interrupt());
  settings->trainer.schedule.peak = found.rate;
  events->on_note("learning rate " + to_text(found));
  return found;
}

// The data of a training.
struct FitData {
  std::optional<ProgramData> training, evaluation;
  DataNotes notes;
};

FitData open_fit_data(onnx_train_session* s, const onnx_train_data* training, const onnx_train_data* evaluation,
                      FitSettings* settings) {
  Session& session = s->session;
  const TrainerOptions& options = settings->trainer;
  std::string note;  // the program knows which scales it gives
  const std::vector<InputSpec> inputs = entry_inputs(session.model(), training_entry(session));
  const Preprocess preprocess = preprocess_of(session.model(), settings->reading, inputs, &note);
  session.set_metadata(kPreprocess, preprocess.json());
  check_samples(options.samples, evaluation != nullptr);
  FitData data;
  data.training.emplace(s, required(training, "the data"), inputs, preprocess, settings->reading.augment,
                        /*trains=*/true, &data.notes);
  if (const Dataset* const dataset = data.training->dataset()) {
    session.set_metadata(kPreprocess, dataset->preprocess().json());
    for (const auto& [key, value] : dataset->metadata()) session.set_metadata(key, value);
  }
  const bool is_split = splits(options.samples);
  if (is_split) evaluation = training;
  if (evaluation) {
    data.evaluation.emplace(s, *evaluation, entry_inputs(session.model(), "evaluate"), Preprocess(session.model()), "",
                            /*trains=*/false, &data.notes);
    if (!is_split) settings->eval_data = data.evaluation->path();
  }
  settings->data = data.training->path();
  ProgramData::select(options, settings->batch_size, &*data.training, &data.evaluation);
  return data;
}

// How the data were read, as checkpoints and options.json keep it.
void record_reading(const ProgramData& data, FitSettings* settings) {
  const DataOptions given = settings->reading;
  settings->reading = data.reading();
  settings->reading.augment = given.augment;
  settings->reading.scales = given.scales;
  settings->reading.preprocess = given.preprocess;
  if (const Dataset* const dataset = data.dataset()) {
    settings->reading.scales = {dataset->preprocess().option()};
    settings->reading.preprocess = dataset->preprocess().steps_option();
  }
  TrainerOptions& options = settings->trainer;
  options.recorded = fixed_settings(joined(data_options(&settings->reading), sample_options(&options.samples)));
}

// Notes of the data, and what a user should know of files; `says_how`: the program says how they are to be scaled.
void tell_of_data(const FitData& data, bool says_how, ProgramEvents* events) {
  events->on_notes(data.notes);
  if (!says_how) events->on_notes({data.training->hint(), data.evaluation ? data.evaluation->hint() : ""});
}

// Makes the run's folder with options.json, and locks it, unless it is there and locked.
void begin_run(const Session& session, const Trainer& trainer, const std::vector<std::string>& checked,
               const Found& found, FitSettings* settings, RunLock* lock) {
  const std::string& folder = settings->trainer.folder;
  if (folder.empty()) return;
  settings->schedule.rate = settings->trainer.schedule.peak;
  settings->session.device = session.device().name();
  settings->session.threads = session.threads();
  if (session.offload() == Offload::kOptimizer) settings->session.offload = "optimizer";
  prepare_folder(folder);
  if (!lock->is_held()) {
    *lock = RunLock(folder);
    expect_no_run(*settings);  // another one may have begun, and ended, since this one looked
  }
  write_options(folder, recorded_options(settings), session, trainer, checked, {}, found);
}

onnx_train_stop_reason fit_as_rank(onnx_train_session* s, const onnx_train_data* training,
                                   const onnx_train_data* evaluation, FitSettings settings,
                                   const onnx_train_observer* observer) {
  Session& session = s->session;
  TrainerOptions& options = settings.trainer;
  RunLock lock;
  DataMetadata metadata(&session);
  const std::optional<ResumedRun> run = find_run(&settings, s, &lock);
  if (!run && settings.given->count("accumulate") == 0) options.accumulate = session.ranks();
  complete(&settings, built_rate(session.model()));
  if (!options.folder.empty()) options.model = s->identity.empty() ? fingerprint(session.snapshot()) : s->identity;
  if (run) take_over(*run, &session, &settings);
  FitData data = open_fit_data(s, training, evaluation, &settings);
  const bool says_how = settings.reading.says_how();
  record_reading(*data.training, &settings);
  std::vector<std::string> checked = run ? checked_data(options.folder) : std::vector<std::string>();
  if (session.rank() > 0) options.folder.clear();
  if (!settings.no_data_check) {
    data.training->check(training_entry(session), &checked);
    if (data.evaluation) data.evaluation->check("evaluate", &checked);
  }
  ProgramEvents events(s, observer);
  tell_of_data(data, says_how, &events);
  const ProgramData* const eval_data = data.evaluation ? &*data.evaluation : nullptr;
  Found found;
  resolve_batch(&settings, &session, *data.training, eval_data, &events, &found);
  std::vector<std::string> changes;
  const auto trainer_of = [&] {
    auto evaluation_batches = eval_data ? eval_data->evaluation(options.batch_size) : nullptr;
    auto trainer =
        std::make_unique<Trainer>(&session, data.training->training(options), std::move(evaluation_batches), options);
    if (run) changes = trainer->resume(run->position);
    return trainer;
  };
  std::unique_ptr<Trainer> trainer = trainer_of();
  if (run) restore(&session, run->model, settings.last_checkpoint());  // which nothing refuses any more
  if (settings.schedule.find_rate) {
    if (session.ranks() > 1) throw UsageError("an lr of auto is for one process; give its result");
    found.rate = resolve_rate(&settings, &session, *data.training, &events);
    trainer = trainer_of();
  }
  for (const std::string& change : changes) events.on_note("resumed, and changed: " + change);
  expect_same_start(session, *trainer, "");
  begin_run(session, *trainer, checked, found, &settings, &lock);
  metadata.begin();
  std::optional<MetricsLog> log;
  if (!options.folder.empty()) {
    const std::string classes = session.model().metadata(kClasses);
    events.write_to(&log.emplace(options.folder, trainer->position().step, classes_from_json(classes)));
  }
  const onnx_train_stop_reason reason = public_reason(trainer->run(&events, events.interrupt()));
  if (session.ranks() > 1) session.collectives()->end();
  return reason;
}

// A rank that fails ends the others, too.
onnx_train_stop_reason fit(onnx_train_session* s, const onnx_train_data* training, const onnx_train_data* evaluation,
                           const FitSettings& settings, const onnx_train_observer* observer) {
  try {
    return fit_as_rank(s, training, evaluation, settings, observer);
  } catch (const std::exception& error) {
    if (Collectives* const ranks = s->session.collectives()) ranks->give_up(error.what());
    throw;
  }
}

}  // namespace
}  // namespace onnx_train

using namespace onnx_train;

extern "C" {

onnx_train_status onnx_train_split(int64_t samples, const onnx_train_option* options, size_t count, int64_t* training,
                                   size_t* num_training, int64_t* evaluation, size_t* num_evaluation) {
  return guarded([&] {
    SampleOptions given;
    int64_t seed = 0;
    const auto rows = with_keys(sample_options(&given), {"limit", "val-split", "folds", "fold"});
    read_options(options, count, joined({{"--seed", &seed, ""}}, rows));
    check_samples(given, /*has_evaluation=*/false);
    if (samples < 1) throw UsageError("there are no samples to split");
    const SampleRows selected = select_samples(samples, given, static_cast<uint64_t>(seed), /*batch_size=*/1,
                                               /*fixed_batch=*/0);
    const auto write = [](const std::vector<int64_t>& from, int64_t* to, size_t* number) {
      std::copy(from.begin(), from.end(), &required(to, "where the rows go"));
      required(number, "where their number goes") = from.size();
    };
    write(selected.training, training, num_training);
    write(selected.evaluation, evaluation, num_evaluation);
  });
}

onnx_train_status onnx_train_fit(onnx_train_session* session, const onnx_train_data* training,
                                 const onnx_train_data* evaluation, const onnx_train_option* options, size_t count,
                                 const onnx_train_observer* observer, onnx_train_stop_reason* reason) {
  return in_session(session, [&](onnx_train_session& s) {
    const FitSettings settings = read_fit_settings(options, count);
    const onnx_train_stop_reason stopped = fit(&s, training, evaluation, settings, observer);
    if (reason) *reason = stopped;
  });
}
}
