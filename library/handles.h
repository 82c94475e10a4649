// What is behind the handles of the C interface.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "library/guard.h"
#include "onnx_passes/ir/message.h"
#include "onnx_train/onnx_train.h"
#include "runtime/data/images/rows.h"
#include "runtime/data/loading/source.h"
#include "runtime/models/check_report.h"
#include "runtime/session/session.h"
#include "runtime/support/fingerprint.h"
#include "runtime/training/evaluation.h"

// The notes of a model, read once, by whichever thread asks first.
class ModelNotes {
 public:
  const std::vector<onnx_train_finding>& of(const onnx_train::ModelMessage& model) const;

 private:
  mutable std::once_flag read_;
  mutable std::vector<onnx_train::Finding> notes_;
  mutable std::vector<onnx_train_finding> findings_;  // views of `notes_`
};

// A model as its file has it; each call that needs the graph makes one.
struct onnx_train_model {
  explicit onnx_train_model(onnx_train::ModelMessage m) : message(std::move(m)) {}

  onnx_train::ModelMessage message;
  ModelNotes notes;
};

struct onnx_train_report {
  onnx_train::CheckReport report;
  std::string text;
  std::vector<onnx_train_finding> obstacles, findings;  // views of `report`
};

// The inputs or outputs of one entry point, and what their descriptions point to.
struct onnx_train_ports {
  struct Text {
    std::string name, role, of;
  };
  std::vector<onnx_train_port> ports;
  std::deque<Text> texts;
  std::deque<onnx_train::Shape> shapes;
  std::deque<onnx_train::Tensor> defaults;
};

// The arrays of a path.
struct onnx_train_dataset {
  std::string path;
  onnx_train::DataOptions reading;  // with which it was opened
  onnx_train::DataArrays read;
  std::function<void(onnx_train::DataArrays*)> add_pictures;  // as the network reads them; none: there are none
  // All arrays in memory, and views of them, once a program asks for them: rows of readers are read for that.
  std::once_flag described;
  onnx_train::TensorMap tensors;
  std::vector<onnx_train_tensor> arrays;
  std::optional<onnx_train::SampleCount> count;  // of those of an entry point
};

struct onnx_train_session {
  explicit onnx_train_session(onnx_train::Model model, const onnx_train::SessionOptions& options)
      : identity(options.topology.sharding == onnx_train::Sharding::kNone && options.topology.stages == 1 &&
                         options.topology.tensor == 1
                     ? ""
                     : onnx_train::fingerprint(model)),
        session(std::move(model), options) {
    for (const std::string& name : session.state().names()) state_names.push_back(name.c_str());
    entry_names.push_back(name_of(onnx_train::Entry::kPredict));
    for (const onnx_train::EntryPoint& entry : session.model().entry_points) {
      if (!entry.algorithm->outputs().empty()) entry_names.push_back(entry.algorithm->name().c_str());
    }
  }

  std::string identity;  // of the model, where ranks share out its states, so that none of them has it afterwards
  onnx_train::Session session;
  std::vector<const char*> state_names, entry_names;
  std::map<std::string, onnx_train_ports> inputs, outputs_of;  // by entry point, as far as asked for
  onnx_train_ports states;                                     // once they are asked for
  std::vector<onnx_train_tensor> outputs;                      // of the last run
  onnx_train::TensorMap predicted;                             // what `outputs` are of the last onnx_train_predict
  onnx_train::Metrics evaluated;                               // by the last onnx_train_evaluate
  std::vector<onnx_train_metric> metrics;                      // views of `evaluated`
  onnx_train::MetricTables by_class;                           // what its metrics say by class
  std::vector<onnx_train_tensor> tables;                       // views of `by_class`
  std::string generate_note;                                   // of the last onnx_train_generate
  std::map<std::string, onnx_train::TensorMap> adapters;       // by the names that the program gave them
  std::string plan_text, plan_json;                            // of the last onnx_train_session_plan
  std::atomic<bool> busy{false};
};

namespace onnx_train {

// f(session). Fails with ONNX_TRAIN_USAGE if another thread is in it.
template <typename F>
onnx_train_status in_session(onnx_train_session* handle, const F& f) {
  return guarded([&] {
    onnx_train_session& owner = required(handle, "the session");
    if (owner.busy.exchange(true)) throw UsageError("the session is at work in another thread; wait, or make another");
    struct Release {
      std::atomic<bool>& busy;
      ~Release() { busy = false; }
    } release{owner.busy};
    f(owner);
  });
}

// A view of a tensor in the host's memory.
onnx_train_tensor described(const std::string& name, DType dtype, const Shape& shape, const void* data);
std::vector<onnx_train_tensor> described(const TensorMap& tensors);

// Views of the caller's memory, by name. Throws Error for tensors that no memory holds, for a name given twice and for
// tensors in device memory.
TensorMap views_of(const onnx_train_tensor* tensors, size_t count);
// The same for the inputs of a run, which may be in the memory of the session's device. Inputs that a run reads where
// it changes them, states in the host's memory, are copied.
TensorMap inputs_of_run(Session* session, const onnx_train_tensor* inputs, size_t count);

}  // namespace onnx_train
