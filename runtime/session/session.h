// A training model on one device: its state, and a plan for each entry point and each set of input shapes used so far.
//
//     Session session(load_model("train.onnx"));
//     session.initialize(/*seed=*/1);
//     auto out = session.run(Entry::kStep, {{"x", images}, {"labels", labels}});
//     float loss = out.at("loss").at(0);
//
// A run is all or nothing: state updates are committed only if it succeeds. The caller owns the session and uses it
// from one thread at a time. All functions throw Error.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "kernels/choices/choices.h"
#include "onnx_passes/adapt/test_time_augmentation.h"
#include "runtime/plan/entry_passes.h"
#include "runtime/plan/executable.h"
#include "runtime/session/state_store.h"
#include "runtime/session/topology.h"

namespace onnx_train {

// What is stored in the host's memory while a device that has its own trains (Device::allocate_host). The same numbers
// are computed; what is there crosses the bus in each step.
enum class Offload {
  kNone,
  kOptimizer,  // the states that a step streams (onnx_passes/training/streamed_states.h)
};

struct SessionOptions {
  Device* device = nullptr;  // null: default_device()
  int threads = 0;           // of the CPU's kernels; 0: default_threads() of the calling thread (kernels/host.h)
  PlanOptions plan;
  Offload offload = Offload::kNone;  // refused where the device uses the host's memory
  // A run that updates the state fails if its loss is not finite, and then has changed no state where the device uses
  // host memory. Models with loss scaling skip such updates themselves.
  bool refuse_non_finite_loss = false;
  // Of what ONNX's random operators draw in kPredict and kEvaluate. Each batch has other numbers: its number is a
  // part of the key. Training draws from the state.
  uint64_t seed = 0;
  TestTimeViews views = {};  // over which kEvaluate and kPredict average
  TopologyOptions topology;  // where this session is one rank of several
  bool plans_only = false;   // states get no memory: entry points are planned, and cannot run
  size_t max_plans = 16;     // the least recently used plan beyond that is dropped
};

// What the runs of one entry point with inputs of given shapes take beside the state, in bytes.
struct PlannedMemory {
  size_t arena = 0;      // gradients, activations and workspace; all plans of a session share one, the largest
  size_t constants = 0;  // copies of the plan's constants, in the device's memory
  size_t slots = 0;      // inputs and outputs in the memory of a device that has its own; 0 on the host
  size_t outputs = 0;    // in the host's memory
};

std::map<std::string, Shape> shapes_of(const TensorMap& tensors);

class Session {
 public:
  explicit Session(Model model, const SessionOptions& options = {});
  ~Session();

  // Without the contents of the states, which are in `state()`.
  const Model& model() const { return model_; }
  // metadata_props, which checkpoints, snapshots and exports have, too.
  void set_metadata(const std::string& key, const std::string& value) { model_.set_metadata(key, value); }
  Device& device() const { return device_; }
  const SessionOptions& options() const { return options_; }
  const Topology& topology() const { return topology_; }
  // Copies the value of a state to `to` on rank 0, from the rank that keeps it. All ranks call it; those that give null
  // want no value.
  void collect_state(size_t i, void* to);
  // Gives rank 0 the forms of the nodes of other stages, for checkpoints. All ranks call it.
  void collect_choices();
  const Stream& stream() const { return *stream_; }  // on which all work of the session runs
  bool has_entry(const EntryName& entry) const;
  // The name of the entry point's output with this role ("loss": roles.h); null if there is none.
  const std::string* output_name(const EntryName& entry, std::string_view role) const;
  // The name of an output of the entry point in reports: its role, or its name if it has none.
  std::string metric_name(const EntryName& entry, const std::string& output) const;

  // Runs an entry point with outputs and commits its updates. Inputs with a default may be omitted. Input tensors are
  // read in place, or copied to the device. They may be in device memory (Tensor::on_device), also states of this
  // session: the stream copies them before the run, in its order, so that what writes them must be complete or the
  // stream must wait for it. The outputs are in the session's memory and valid until the next run of the same plan:
  // clone those that must live longer. Throws Error for missing, unknown or ill-typed inputs.
  // An output of `predict` whose shape depends on data has that of this run: what decides it is computed first, so that
  // the part of the model before it runs twice.
  // `batches`: how many all ranks together have in this round; 0: one each. `ends_step`: kApply is next. Where that is
  // not known, and not said, kApply does what is left.
  const TensorMap& run(const EntryName& entry, const TensorMap& inputs, int64_t batches = 0, bool ends_step = false);
  // Whether such a run has found the shape of this output to depend on data.
  bool is_sized_by_data(const std::string& output) const { return sized_by_data_.contains(output); }
  // The same in two parts, so that a device has work while the host reads results. `start` enqueues a run; it throws
  // Error for the names, types and shapes of the inputs. `finish` waits for the earliest unfinished run and returns its
  // outputs; it throws Error for the data in the inputs. In that case this run and all runs started after it have
  // changed no state, and none of them remains to be finished.
  void start(const EntryName& entry, const TensorMap& inputs, int64_t batches = 0, bool ends_step = false);
  const TensorMap& finish();
  // What the products and convolutions of the run that `finish` has finished last have computed (Plan::operations).
  // Valid until the next run is started.
  const std::map<DType, double>& operations() const { return *operations_; }
  // Waits until the inputs of started runs that are in device memory have been read; the caller may then change them.
  // Those in host memory have been read when `start` returns.
  void wait_for_inputs();

  // The next run of the entry point draws the numbers of its first one: of an evaluation, each of which draws the same.
  void draw_again(const EntryName& entry) { drawn_[entry] = 0; }

  // Reinitializes the state from `seed` with the initialization graphs.
  void initialize(uint64_t seed);

  StateStore& state() { return state_; }
  const std::vector<std::string>& state_names() const { return state_.names(); }
  // A copy of the model with the current state as initializers.
  Model snapshot() const;
  // The current value of a state, or of an initializer of the model's graphs.
  Tensor contents(const std::string& name) const;

  // The plan that `run` would use for inputs of these shapes, created on demand. Valid until it is dropped from the
  // cache.
  Plan& plan(const EntryName& entry, const std::map<std::string, Shape>& shapes);
  // Frees the plans of an entry point that is not used again. None of its runs may be started.
  void drop_plans(const EntryName& entry);
  // The same plan for the caller alone: allocates nothing and keeps nothing. Throws Error as `plan` does, except that
  // memory is not compared with what the device has left.
  std::unique_ptr<Plan> planned(const EntryName& entry, const std::map<std::string, Shape>& shapes);
  // What that plan takes.
  PlannedMemory planned_memory(const EntryName& entry, const std::map<std::string, Shape>& shapes);
  // What the states of this rank take in all memories, also where they have none.
  size_t state_bytes() const;
  const Arithmetic& arithmetic() const { return options_.plan.arithmetic; }
  // Which forms the nodes of its plans have.
  const Choices& choices() const { return *choices_; }
  // For plans that are made from now on. Where a group of ranks computes the same values, forms are never timed: those
  // of each rank would round in another way, and weights that all have would drift apart.
  void set_new_choices(Choices::New what) {
    const bool may_time = !topology_.is_tensor_parallel();
    choices_->set_new(what == Choices::New::kTimed && !may_time ? Choices::New::kByRule : what);
  }
  size_t memory_budget() const { return options_.plan.memory; }  // 0: none
  // Size in bytes of the arena that all plans share.
  size_t arena_bytes() const { return arena_bytes_; }

 private:
  struct CachedPlan;  // an executable and its cache key
  struct Run;         // a started run and the memory of its outputs
  std::function<StateMemory(const std::string&)> memory_of_states() const;
  // `sizes` are those of PlanOptions.
  using FoundSizes = std::optional<std::vector<Tensor>>;
  void keep_choices();  // in the model's metadata
  void collect_parts(size_t i, void* to);
  std::unique_ptr<Plan> compile(const EntryName& entry, GradientSums sums, Model flat,
                                const std::map<std::string, Shape>& shapes, const FoundSizes& sizes);
  CachedPlan& make_plan(const EntryName& entry, GradientSums sums, Model flat,
                        const std::map<std::string, Shape>& shapes, const FoundSizes& sizes);
  void make_room(const Plan& plan);
  CachedPlan& find_plan(const EntryName& entry, GradientSums sums, const TensorMap& inputs, const FoundSizes& sizes);
  void start(const EntryName& entry, const TensorMap& inputs, int64_t batches, bool ends_step, const FoundSizes& sizes);
  GradientSums sums_of_plan(const EntryName& entry) const;  // of the larger plan
  void abandon_runs() noexcept;
  void wait_for_run(int64_t mark) { topology_.wait(stream_.get(), mark, device_); }
  bool refuses_non_finite_loss(const EntryName& entry) const;
  EntryOptions entry_options(const EntryName& entry, GradientSums sums,
                             const std::map<std::string, Shape>& shapes) const;
  // The entry point as Plan takes it.
  Model plain(const EntryName& entry, GradientSums sums, const std::map<std::string, Shape>& shapes) const;
  Model plain(const EntryName& entry, GradientSums sums, const std::map<std::string, Shape>& shapes,
              const PipelineOptions& pipeline) const;
  // What the entry point is told beside the data: of ranks, and the key of random numbers.
  TensorMap own_inputs(const EntryName& entry, int micro_batches, int64_t batches) const;
  std::map<std::string, Shape> with_own_inputs(const EntryName& entry, std::map<std::string, Shape> shapes) const;
  bool draws(const EntryName& entry) const;  // whether it has ONNX's random operators
  void connect_device();

  Model model_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  SessionOptions options_;
  std::unique_ptr<Choices> choices_;  // of the model's metadata, and made since
  Topology topology_;
  StateStore state_;
  std::vector<std::unique_ptr<CachedPlan>> plans_;
  std::deque<Run*> started_;
  static inline const std::map<DType, double> kNoOperations = {};
  const std::map<DType, double>* operations_ = &kNoOperations;
  std::set<std::string> sized_by_data_;  // outputs of predict
  Fault* fault_ = nullptr;               // of the device; all runs report to it
  void* arena_ = nullptr;
  size_t arena_bytes_ = 0;
  bool has_own_sums_ = false;                // kApply has to make the sums of all ranks (GradientSums::kOwn)
  std::map<EntryName, uint64_t> drawn_;      // how many batches each entry point has drawn numbers for
  mutable std::map<EntryName, bool> draws_;  // what draws() has found
  uint64_t clock_ = 0;
  int64_t inputs_read_ = 0;  // the mark after the last copies of inputs within the device
};

}  // namespace onnx_train
