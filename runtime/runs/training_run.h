// A training, from its settings and its data to its last step: the command, C, C++ and Python stand on it. It looks for
// a batch size and a learning rate where the user asks for that, goes on with a run, checks the data, and fills the
// run's folder. An observer gets what happens, and shows it. The caller owns a run and uses it from one thread at a
// time. Functions throw Error, and UsageError for settings that do not go together.
//
//     TrainingRun run(&session, &settings, std::move(data));
//     run.prepare(&events, interrupt);
//     run.open_folder();
//     run.write_options(options);
//     const StopReason reason = run.train(&events, interrupt);
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/runs/fit_settings.h"
#include "runtime/runs/run_data.h"
#include "runtime/runs/run_folder.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/run_lock.h"
#include "runtime/training/trainer.h"

namespace onnx_train {

// What a training tells: what it has found before its first step, and its steps. By default a line of text each.
class RunEvents : public TrainerEvents {
 public:
  virtual void on_batch(const FoundBatch& found) { on_note(to_text(found)); }
  virtual void on_rate_search() {}  // which takes as long as its steps
  virtual void on_rate(const FoundRate& found) { on_note("learning rate " + to_text(found)); }
  // It goes on with a run; `changes` are settings that differ from the run's (Trainer::resume).
  virtual void on_resumed(const TrainingPosition& position, const std::vector<std::string>& changes);
};

class TrainingRun {
 public:
  // `settings` are complete but for what is found here. `session` and `settings` must outlive the run.
  // `local_ranks`: the processes on this machine that train together, this one among them.
  TrainingRun(Session* session, FitSettings* settings, TrainingData data, int local_ranks = 1);
  TrainingRun(const TrainingRun&) = delete;

  // It goes on at the position of a run. `restore` gives the session the run's state, and is called once nothing
  // refuses the run any more; null where the session has that state.
  void resume(TrainingPosition position, std::function<void()> restore = nullptr);

  // Makes the trainer: everything that can be refused is refused here, before a file is written. Of several ranks all
  // call it.
  void prepare(RunEvents* events, const std::atomic<bool>& interrupt);
  const Trainer& trainer() const { return *trainer_; }
  const Found& found() const { return found_; }
  const TrainingData& data() const { return data_; }
  // A trainer that writes nothing, which starts where this run does.
  std::unique_ptr<Trainer> rehearsal();

  // Makes and locks the folder, unless `lock` holds it; does nothing for ranks above 0, and where there is no folder.
  void open_folder(RunLock lock = {});
  // Writes options.json; the same.
  void write_options(const std::vector<CommandOption>& options, const MemoryRows& memory = {}) const;
  // Trains, and writes metrics and checkpoints into the folder. `events` are told after the files are written.
  StopReason train(TrainerEvents* events, const std::atomic<bool>& interrupt);

 private:
  void find_batch(RunEvents* events);
  void find_rate(RunEvents* events, const std::atomic<bool>& interrupt);
  void check_data();
  std::unique_ptr<Trainer> make_trainer(std::vector<std::string>* changes);

  Session& session_;
  FitSettings& settings_;
  const TrainingData data_;
  const int local_ranks_;
  std::optional<TrainingPosition> position_;  // of the run that this one goes on with
  std::function<void()> restore_;
  Found found_;
  std::vector<std::string> checked_;  // fingerprints of data
  RunLock lock_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace onnx_train
