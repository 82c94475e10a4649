// The training loop of the C interface: over arrays, batches and files of the program.
#include "kernels/collectives.h"
#include "library/options.h"
#include "library/program_data.h"
#include "onnx_passes/io/file.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/model/table_metadata.h"
#include "runtime/data/selection.h"
#include "runtime/distribution/ranks.h"
#include "runtime/runs/resume.h"
#include "runtime/runs/training_run.h"
#include "runtime/support/fingerprint.h"
#include "runtime/training/controls.h"

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
    if (!saved.contains(name)) fail_as(ErrorCode::kCannotResume, "cannot resume: ", path, " has no state '", name, "'");
    const Value& value = *saved.at(name);
    if (value.dtype() != present.dtype(i) || constant_shape(value) != present.shape(i))
      fail_as(ErrorCode::kCannotResume, "cannot resume: ", path, " has another shape or type of state '", name, "'");
    if (present.keeps(i)) states.emplace_back(name, contents_of(value));
  }
  for (const auto& [name, value] : states) session->state().set(name, value);
}

// The run to go on with, if there is one, whose settings stay where none are given. Locks a folder that is there.
std::optional<ResumedRun> find_run(FitSettings* settings, onnx_train_session* s, RunLock* lock) {
  const std::string& folder = settings->trainer.folder;
  if (folder.empty() && settings->resume) throw UsageError("--resume needs the folder of a run: --out");
  const bool leads = s->session.topology().rank() == 0;  // rank 0 writes the run's folder
  if (leads && !folder.empty() && folder_exists(folder)) *lock = RunLock(folder);
  if (!finds_run(*settings)) return std::nullopt;
  const std::string last = settings->last_checkpoint();
  Model model = load_training_model(last, s->session.topology().options());
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

// Opens the data, and says in `settings` which files they are and how they are read.
TrainingData open_program_data(onnx_train_session* s, const onnx_train_data* training,
                               const onnx_train_data* evaluation, FitSettings* settings, ProgramEvents* events) {
  Session& session = s->session;
  DataOptions& reading = settings->reading;
  const TrainerOptions& options = settings->trainer;
  std::string note;  // the program knows which scales it gives
  const std::vector<InputSpec> inputs = entry_inputs(session.model(), training_entry(session));
  const Preprocess preprocess = preprocess_of(session.model(), reading, inputs, &note);
  session.set_metadata(kPreprocess, preprocess.json());
  check_samples(options.samples, evaluation != nullptr);
  DataNotes notes;
  TrainingData data{program_data(s, required(training, "the data"), inputs, preprocess, reading.augment,
                                 /*trains=*/true, "data", &notes),
                    {}};
  const std::optional<Dataset>& dataset = data.training.dataset;
  if (dataset) {
    session.set_metadata(kPreprocess, dataset->preprocess().json());
    for (const auto& [key, value] : dataset->metadata()) session.set_metadata(key, value);
  }
  const bool is_split = splits(options.samples);
  const onnx_train_data* const evaluated = is_split ? training : evaluation;
  if (evaluated) {
    data.evaluation = program_data(s, *evaluated, entry_inputs(session.model(), Entry::kEvaluate),
                                   Preprocess(session.model()), "", /*trains=*/false, "evaluation data", &notes);
  }
  data.select(options.samples, options.seed, settings->batch_size);
  events->on_notes(notes);
  if (!reading.says_how()) {
    events->on_notes(
        {hint_of(*training, data.training, session), evaluated ? hint_of(*evaluated, *data.evaluation, session) : ""});
  }
  const onnx_train_dataset* const files = copy_of(*training).dataset;
  if (files) settings->data = files->path;
  if (const auto* tests = evaluation ? copy_of(*evaluation).dataset : nullptr) settings->eval_data = tests->path;
  const DataOptions given = reading;
  reading = files ? files->reading : DataOptions();
  reading.augment = given.augment;
  reading.scales = dataset ? std::vector<std::string>{dataset->preprocess().option()} : given.scales;
  reading.preprocess = dataset ? dataset->preprocess().steps_option() : given.preprocess;
  return data;
}

onnx_train_stop_reason fit_as_rank(onnx_train_session* s, const onnx_train_data* training,
                                   const onnx_train_data* evaluation, FitSettings settings,
                                   const onnx_train_observer* observer) {
  Session& session = s->session;
  TrainerOptions& options = settings.trainer;
  RunLock lock;
  DataMetadata metadata(&session);
  std::optional<ResumedRun> run = find_run(&settings, s, &lock);
  if (!run && settings.given->count("accumulate") == 0) options.accumulate = session.topology().batches_at_once();
  complete(&settings, built_rate(session.model()));
  if (!options.folder.empty()) options.model = s->identity.empty() ? fingerprint(session.snapshot()) : s->identity;
  if (run) take_over(*run, &session, &settings);
  ProgramEvents events(s, observer);
  TrainingData data = open_program_data(s, training, evaluation, &settings, &events);
  options.recorded = fixed_settings(joined(data_options(&settings.reading), sample_options(&options.samples)));
  const std::optional<RankPlace> place = session.topology().ranks() > 1 ? rank_place_of_environment() : std::nullopt;
  TrainingRun training_run(&session, &settings, std::move(data), place ? place->local_size : 1);
  if (run) {
    const auto state = [&, path = settings.last_checkpoint()] { restore(&session, run->model, path); };
    training_run.resume(run->position, state);
  }
  training_run.prepare(&events, events.interrupt());
  settings.session.device = session.device().name();
  settings.session.threads = session.options().threads;
  if (session.options().offload == Offload::kOptimizer) settings.session.offload = "optimizer";
  training_run.open_folder(std::move(lock));
  training_run.write_options(recorded_options(&settings));
  metadata.begin();
  const onnx_train_stop_reason reason = public_reason(training_run.train(&events, events.interrupt()));
  if (session.topology().ranks() > 1) session.topology().collectives()->end();
  return reason;
}

// A rank that fails ends the others, too.
onnx_train_stop_reason fit(onnx_train_session* s, const onnx_train_data* training, const onnx_train_data* evaluation,
                           const FitSettings& settings, const onnx_train_observer* observer) {
  try {
    return fit_as_rank(s, training, evaluation, settings, observer);
  } catch (const std::exception& error) {
    if (Collectives* const ranks = s->session.topology().collectives()) ranks->give_up(error.what());
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
    const auto rows = with_keys(sample_options(&given), {"skip", "limit", "val-split", "folds", "fold"});
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
