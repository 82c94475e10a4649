// A training model on one device: its state, and a plan for each entry point and set of input shapes met so far.
//
//     Session session(load_model("train.onnx"));
//     session.initialize(/*seed=*/1);
//     auto out = session.run("step", {{"x", images}, {"labels", labels}, {"learning_rate", Tensor::scalar(1e-3f)}});
//     float loss = out.at("loss").at(0);
//
// A run is all or nothing: it commits its state updates after it has succeeded. One thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "runtime/executable.h"
#include "runtime/state_store.h"

namespace onnx_train {

struct SessionOptions {
  Device* device = nullptr;  // null: default_device()
  int threads = 0;           // of the CPU's kernels; 0: those of the calling thread's setting (set_num_threads)
  PlanOptions plan;
  size_t max_plans = 16;  // the least recently used plan beyond that is dropped
};

using TensorMap = std::map<std::string, Tensor>;
std::map<std::string, Shape> shapes_of(const TensorMap& tensors);

class Session {
 public:
  explicit Session(Model model, const SessionOptions& options = {});
  ~Session();

  // Without the state's contents: those are in `state()`.
  const Model& model() const { return model_; }
  Device& device() const { return device_; }
  bool has_entry(const std::string& entry) const;
  // The name of the entry point's output with this role ("loss": roles.h); null when it has none.
  const std::string* output_name(const std::string& entry, std::string_view role) const;
  // What an output of the entry point is called in reports: its role, or its name where it has none.
  std::string metric_name(const std::string& entry, const std::string& output) const;

  // Runs an entry point ("predict", "evaluate", "step", "accumulate", "apply") and commits its updates. Inputs that
  // have a default may be left out. Input tensors are read in place. The outputs lie in the session's memory until
  // the next run of the same plan: clone what must live longer. Throws Error on missing, unknown or ill-typed inputs.
  const TensorMap& run(const std::string& entry, const TensorMap& inputs);

  // Draws the state anew from `seed`, as the initialization graphs say.
  void initialize(uint64_t seed);

  StateStore& state() { return state_; }
  // A copy of the model with the current state as initializers.
  Model snapshot() const;
  // The current value of a state, or that of an initializer of the model's graphs.
  Tensor contents(const std::string& name) const;

  // The plan that `run` would use; made if there is none yet. Lives until it is dropped from the cache.
  Plan& plan(const std::string& entry, const std::map<std::string, Shape>& shapes);
  size_t memory_budget() const { return options_.plan.memory; }  // 0: none
  // Bytes of the arena that all plans share.
  size_t arena_bytes() const { return arena_bytes_; }

 private:
  struct CachedPlan;  // an executable, and what it is found by
  CachedPlan& make_plan(const std::string& entry, Model flat, const std::map<std::string, Shape>& shapes);
  void make_room(const Plan& plan);

  Model model_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  SessionOptions options_;
  StateStore state_;
  std::vector<std::unique_ptr<CachedPlan>> plans_;
  void* arena_ = nullptr;
  size_t arena_bytes_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace onnx_train
