// Data and callbacks of a program, as the training loop, evaluation and prediction take them. One thread, that of the
// call of the C interface. Functions throw Error, and UsageError for what does not go together.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "library/guard.h"
#include "library/handles.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/loading/source.h"
#include "runtime/runs/training_run.h"

namespace onnx_train {

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

// The data of a program: a dataset of arrays or files, or batches that it makes. `inputs` are the entry_inputs of the
// entry point that reads the data; `notes` say what is done to pictures. `name` is what messages call arrays.
RunData program_data(onnx_train_session* session, const onnx_train_data& given, const std::vector<InputSpec>& inputs,
                     const Preprocess& preprocess, const std::string& augment, bool trains, const char* name,
                     DataNotes* notes);

// "" or what a user should know of files, which are `read`: the program knows what its arrays hold.
std::string hint_of(const onnx_train_data& given, const RunData& read, const Session& session);

// Tells the program's observer, which may be null, of a training.
class ProgramEvents : public RunEvents {
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
                                  r.skipped ? 1 : 0,
                                  r.tokens,
                                  r.utilization.value_or(NAN)};
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

}  // namespace onnx_train
