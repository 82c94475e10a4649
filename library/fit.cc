// The training loop of the C interface: over arrays, batches and files of the program.
#include <filesystem>

#include "kernels/collectives.h"
#include "library/program_data.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/table_metadata.h"
#include "runtime/data/selection.h"
#include "runtime/distribution/same_start.h"
#include "runtime/training/batch_search.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/controls.h"
#include "runtime/training/fingerprint.h"
#include "runtime/training/rate_search.h"
#include "runtime/training/run_lock.h"

namespace onnx_train {
namespace {

struct FitSettings {
  TrainerOptions trainer;
  ScheduleSettings schedule;
  bool no_shuffle = false, resume = false, overwrite = false, no_data_check = false, find_batch = false;
  DataOptions reading;
  std::optional<int64_t> batch_size;
  std::string memory_limit;
};

std::vector<CommandOption> fit_options(FitSettings* s) {
  TrainerOptions& t = s->trainer;
  std::vector<CommandOption> options = {
      {"--epochs", {&t.epochs, kCount}, ""},
      {"--steps", {&t.steps, kCount}, ""},
      {"--time-limit", {&t.time_limit, kPositive}, ""},
      {"--batch-size", OptionTarget(&s->batch_size, kCount).or_auto(&s->find_batch), ""},
      {"--memory-limit", {&s->memory_limit, check_bytes}, ""},
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
      {"--stop-at", {&t.stop_at, check_stop_target}, ""},
      {"--checkpoint-every", {&t.checkpoint_every, kCount}, ""},
      {"--out", &t.folder, ""},
      {"--resume", &s->resume, ""},
      {"--overwrite", &s->overwrite, ""},
      {"--wait-for-steps", &t.wait_for_steps, ""}};
  for (CommandOption& option : schedule_options(&s->schedule)) options.push_back(std::move(option));
  return options;
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
  if (settings.find_batch && t.samples.overfit_batches > 0) {
    throw UsageError("overfit-batches needs to know the size of a batch: give batch-size as a number");
  }
  t.recorded = fixed_settings(sample_options(&t.samples));
  return settings;
}

// Reads the checkpoint's state into the session; returns its position.
TrainingPosition restore(Session* session, const std::string& path) {
  Model model = load_training_model(path);
  const auto position = checkpoint_position(model);
  if (!position) fail(path, " does not say where its training stands; it is no checkpoint");
  for (const char* what :
       {"onnx_train.loss", "onnx_train.optimizer", "onnx_train.groups", "onnx_train.layer_decay",
        "onnx_train.clip_value", "onnx_train.ema", "onnx_train.swa", "onnx_train.mode", "onnx_train.precision"}) {
    const std::string before = model.metadata(what), now = session->model().metadata(what);
    if (before != now) fail("cannot resume: ", path, " has ", what, " ", before, ", the session ", now);
  }
  std::map<std::string, const Value*> saved;
  for (const EntryPoint& point : model.entry_points) {
    for (const auto& bindings : {point.update_bindings, point.initialization_bindings}) {
      for (const Binding& binding : bindings) saved[binding.state->name()] = binding.state;
    }
  }
  std::vector<std::pair<std::string, Tensor>> states;
  for (const std::string& name : session->state().names()) {
    if (!saved.contains(name)) fail("cannot resume: ", path, " has no state '", name, "'");
    states.emplace_back(name, contents_of(*saved.at(name)));
  }
  for (const auto& [name, value] : states) session->state().set(name, value);
  session->set_metadata(kPreprocess, model.metadata(kPreprocess));
  for (const char* key : kTableMetadata) {
    if (const std::string text = model.metadata(key); !text.empty()) session->set_metadata(key, text);
  }
  return *position;
}

// The position to go on from, if there is one. Locks the folder, and fills in the identity of the model that the run
// starts from.
std::optional<TrainingPosition> prepare_run(FitSettings* settings, onnx_train_session* s, RunLock* lock) {
  Session* const session = &s->session;
  const bool leads = session->rank() == 0;  // rank 0 writes the run's folder
  const std::string& folder = settings->trainer.folder;
  if (folder.empty()) {
    if (settings->resume) throw UsageError("resume needs the folder of a run: out");
    return std::nullopt;
  }
  if (std::error_code error; leads && std::filesystem::is_directory(folder, error)) *lock = RunLock(folder);
  const std::string last = folder + "/last.onnx";
  const bool exists = std::filesystem::exists(last);
  if (exists && !settings->resume && !settings->overwrite) {
    throw UsageError(folder + " holds a run; go on with resume, start anew with overwrite, or take another folder");
  }
  settings->trainer.model = s->identity.empty() ? fingerprint(session->snapshot()) : s->identity;
  if (!exists || !settings->resume) {
    if (leads) std::filesystem::create_directories(folder);
    if (leads && !lock->is_held()) *lock = RunLock(folder);
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
    case StopReason::kTarget: return ONNX_TRAIN_TARGET;
    case StopReason::kStopped: break;
  }
  return ONNX_TRAIN_STOPPED;
}

// What was found when the run began stays.
void adopt_found(const std::optional<TrainingPosition>& position, FitSettings* settings) {
  if (!position) return;
  const auto adopt = [&](const char* name, bool* automatic) {
    const auto saved = position->settings.find(name);
    if (*automatic && saved != position->settings.end()) set_option(fit_options(settings), name, saved->second);
  };
  adopt("batch-size", &settings->find_batch);
  adopt("lr", &settings->schedule.find_rate);
  if (settings->schedule.rate) settings->trainer.schedule.peak = *settings->schedule.rate;
}

void resolve_batch(FitSettings* settings, Session* session, const ProgramData& data, const ProgramData* evaluation,
                   ProgramEvents* events) {
  const Dataset* const dataset = data.dataset();
  if (settings->find_batch) {
    if (session->ranks() > 1) throw UsageError("a batch-size of auto is for one process; give its result");
    if (!dataset)
      throw UsageError("a batch-size of auto is for arrays and files; batches of the program are what they are");
    const FoundBatch found =
        find_largest_batch(session, {*dataset, evaluation ? evaluation->dataset() : nullptr,
                                     parse_bytes(settings->memory_limit), !settings->trainer.folder.empty()});
    settings->batch_size = found.batch;
    events->on_note(to_text(found));
  }
  settings->trainer.batch_size = settings->batch_size.value_or(dataset ? dataset->usual_batch() : kUsualBatch);
}

void resolve_rate(FitSettings* settings, Session* session, const ProgramData& data, ProgramEvents* events) {
  if (!data.dataset()) throw UsageError("an lr of auto is found on arrays and files, which can be read again");
  const FoundRate found = find_rate(session, data.training(settings->trainer), settings->trainer,
                                    built_rate(session->model()), events->interrupt());
  settings->trainer.schedule.peak = found.rate;
  events->on_note("learning rate " + to_text(found));
}

onnx_train_stop_reason fit_as_rank(onnx_train_session* s, const onnx_train_data* training,
                                   const onnx_train_data* evaluation, FitSettings settings,
                                   const onnx_train_observer* observer) {
  Session& session = s->session;
  RunLock lock;
  const auto position = prepare_run(&settings, s, &lock);  // a run that goes on has its scale
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
  adopt_found(position, &settings);
  if (session.rank() > 0) options.folder.clear();
  ProgramData::select(options, settings.batch_size, &data, &eval_data);
  if (!settings.no_data_check) {
    data.check(entry);
    if (eval_data) eval_data->check("evaluate");
  }
  ProgramEvents events(s, observer);
  events.on_notes(notes);
  if (!settings.reading.says_how()) events.on_notes({data.hint(), eval_data ? eval_data->hint() : ""});
  resolve_batch(&settings, &session, data, eval_data ? &*eval_data : nullptr, &events);
  const auto trainer_of = [&] {
    auto evaluation_batches = eval_data ? eval_data->evaluation(options.batch_size) : nullptr;
    auto trainer = std::make_unique<Trainer>(&session, data.training(options), std::move(evaluation_batches), options);
    if (position) trainer->resume(*position);
    return trainer;
  };
  std::unique_ptr<Trainer> trainer = trainer_of();
  if (settings.schedule.find_rate) {
    if (session.ranks() > 1) throw UsageError("an lr of auto is for one process; give its result");
    resolve_rate(&settings, &session, data, &events);
    trainer = trainer_of();
  }
  expect_same_start(session, *trainer, "");
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
    std::vector<CommandOption> known = {{"--seed", &seed, ""}};
    for (CommandOption& option : sample_options(&given)) {
      for (const char* name : {"limit", "val-split", "folds", "fold"}) {
        if (key_of(option) == name) known.push_back(std::move(option));
      }
    }
    read_options(options, count, known);
    check_samples(given, /*has_evaluation=*/false);
    if (samples < 1) throw UsageError("there are no samples to split");
    const SampleRows rows = select_samples(samples, given, static_cast<uint64_t>(seed), /*batch_size=*/1,
                                           /*fixed_batch=*/0);
    const auto write = [](const std::vector<int64_t>& from, int64_t* to, size_t* number) {
      std::copy(from.begin(), from.end(), &required(to, "where the rows go"));
      required(number, "where their number goes") = from.size();
    };
    write(rows.training, training, num_training);
    write(rows.evaluation, evaluation, num_evaluation);
  });
}

onnx_train_status onnx_train_fit(onnx_train_session* session, const onnx_train_data* training,
                                 const onnx_train_data* evaluation, const onnx_train_option* options, size_t count,
                                 const onnx_train_observer* observer, onnx_train_stop_reason* reason) {
  return in_session(session, [&](onnx_train_session& s) {
    const FitSettings settings = read_fit_settings(options, count, s.session.model());
    const onnx_train_stop_reason stopped = fit(&s, training, evaluation, settings, observer);
    if (reason) *reason = stopped;
  });
}
}
