// A cuDNN graph with the library's plans that execute it; nodes with equal descriptions share it. Only files of cuDNN
// kernels include this header, because cudnn-frontend takes a compiler 14 seconds. Graphs are made while kernels are
// chosen, and live while a plan holds them or they are among the recently used ones. Any thread may make and run
// graphs.
#pragma once

#include <cudnn_frontend.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/cuda/choices/fastest.h"
#include "kernels/cuda/support/cudnn_library.h"
#include "kernels/cuda/support/cudnn_limits.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/recently_used.h"
#include "kernels/cuda/support/stream.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {

namespace fe = cudnn_frontend;
using Sizes = std::vector<int64_t>;

inline fe::DataType_t cudnn_type(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return fe::DataType_t::BFLOAT16;
    case DType::kFloat16: return fe::DataType_t::HALF;
    default: return fe::DataType_t::FLOAT;
  }
}

// The layout of a graph's tensor, in elements.
struct CudnnLayout {
  Sizes sizes, strides;

  auto operator<=>(const CudnnLayout&) const = default;  // NOLINT(modernize-use-nullptr): its 0 is no pointer
};

// One of the library's engines with its settings, by which it can execute a graph.
struct CudnnPlan {
  int64_t number;    // in the library's list
  std::string name;  // engine and settings
};

class CudnnGraph {
 public:
  // Returns the plans that may execute the graph: the library's own choice, the first ones of its list, and the first
  // one of each engine, since the list often has one engine with many settings before the next. Only its own choice is
  // built, and is alone with ONNX_TRAIN_TIMED_CHOICES=off.
  std::vector<CudnnPlan> plans() {
    const std::lock_guard lock(mutex_);
    if (!has_choices()) return {plans_[0]};
    std::set<std::string> names = {plans_[0].name}, engines = {engine_of(plans_[0])};
    for (; next_ < graph_.get_execution_plan_count(); ++next_) {
      const std::optional<CudnnPlan> plan = plan_at(next_);
      if (!plan || !names.insert(plan->name).second) continue;
      const bool is_new = engines.insert(engine_of(*plan)).second;
      const bool is_early = plans_.size() < (is_compiled(next_) ? cudnn_limits().compiled_plans : cudnn_limits().plans);
      if (is_early || (is_new && !is_compiled(next_))) plans_.push_back(*plan);
    }
    return plans_;
  }
  // Builds a plan, for which the library may compile a kernel for half a second. Returns false if it cannot.
  bool build(int64_t plan) {
    const std::lock_guard lock(mutex_);
    return graph_.build_plan_at_index(plan).is_good();
  }

  // Bytes of a plan that is built.
  size_t workspace(int64_t plan) const {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::max<int64_t>(0, graph_.get_workspace_size_plan_at_index(plan)));
  }

  // Enqueues a plan that is built on the stream of a run. `addresses` maps the tensors' ids; an Error of the library
  // names `node`.
  void run(const Launch& launch, const std::string& node, int64_t plan, std::unordered_map<int64_t, void*> addresses,
           void* workspace) const {
    auto& stream = *static_cast<CudaStream*>(launch.stream);
    std::shared_ptr<CudnnHandle>& handle = stream.cudnn_handle();
    if (!handle) {
      auto made = std::make_shared<CudnnHandle>(cudnn_library());
      if (const cudnnStatus_t status = cudnnSetStream(made->get(), stream.handle()); status != CUDNN_STATUS_SUCCESS)
        fail_at(node, concat("cudnnSetStream: ", cudnnGetErrorString(status)));
      handle = std::move(made);
    }
    const std::lock_guard lock(mutex_);
    fe::error_t error = graph_.execute_plan_at_index(handle->get(), addresses, workspace, plan);
    if (error.is_bad()) fail_at(node, error.get_message());
  }

 protected:
  using TensorPointer = std::shared_ptr<fe::graph::Tensor_attributes>;

  // A graph of tensors of `type`, computed in float32, in the same bits each time if it is `deterministic`.
  explicit CudnnGraph(DType type, bool deterministic = true) : deterministic_(deterministic) {
    graph_.set_io_data_type(cudnn_type(type))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  // `id` is the key of the tensor's address in run().
  static void describe(const TensorPointer& tensor, int64_t id, const CudnnLayout& layout) {
    tensor->set_uid(id).set_dim(layout.sizes).set_stride(layout.strides);
  }
  TensorPointer operand(int64_t id, const CudnnLayout& layout) {
    TensorPointer tensor = graph_.tensor(fe::graph::Tensor_attributes());
    describe(tensor, id, layout);
    return tensor;
  }
  static void write(const TensorPointer& result, int64_t id, const CudnnLayout& layout) {
    describe(result, id, layout);
    result->set_output(true);
  }

  // Makes the library's list of plans by algorithms that are deterministic, if the graph has to be, sum in float32 and
  // have no property in `left_out` or `behavior_left_out`, and builds the first one. Returns false if the library has
  // none.
  bool make_plans(cudnnHandle_t handle, const std::vector<fe::NumericalNote_t>& left_out = {},
                  const std::vector<fe::BehaviorNote_t>& behavior_left_out = {}) {
    if (graph_.validate().is_bad() || graph_.build_operation_graph(handle).is_bad() ||
        graph_.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}).is_bad())
      return false;
    using fe::NumericalNote_t;
    graph_.deselect_numeric_notes({NumericalNote_t::REDUCED_PRECISION_REDUCTION});  // float16 sums in float16
    if (deterministic_) graph_.deselect_numeric_notes({NumericalNote_t::NONDETERMINISTIC});
    graph_.deselect_numeric_notes(left_out);
    graph_.deselect_behavior_notes(behavior_left_out);
    graph_.deselect_workspace_greater_than(cudnn_limits().workspace);
    while (plans_.empty() && next_ < graph_.get_execution_plan_count()) {
      const std::optional<CudnnPlan> plan = plan_at(next_++);
      if (plan && build(plan->number)) plans_.push_back(*plan);
    }
    return !plans_.empty();
  }

  // The library's graph, with a query that it has for its own use.
  struct Graph : fe::graph::Graph {
    bool supports(int64_t plan) { return plans.check_support_at_index(plan).is_good(); }
  };
  Graph graph_;

 private:
  // Returns nothing if the library does not support the plan, or a property of it is left out.
  std::optional<CudnnPlan> plan_at(int64_t number) {
    CudnnPlan plan{number, ""};
    const bool is_offered = graph_.supports(number) && graph_.get_plan_name_at_index(number, plan.name).is_good();
    return is_offered ? std::optional(plan) : std::nullopt;
  }
  bool is_compiled(int64_t number) const {
    std::vector<fe::BehaviorNote_t> notes;
    return graph_.get_behavior_notes_for_plan_at_index(number, notes).is_good() &&
           std::find(notes.begin(), notes.end(), fe::BehaviorNote_t::RUNTIME_COMPILATION) != notes.end();
  }
  static std::string engine_of(const CudnnPlan& plan) { return plan.name.substr(0, plan.name.find('_')); }

  const bool deterministic_;
  std::vector<CudnnPlan> plans_;  // those that were looked at and may execute the graph
  int64_t next_ = 0;              // in the library's list, which starts with the fastest by its estimate
  mutable std::mutex mutex_;      // the library does not promise that two threads may run one plan

  [[noreturn]] static void fail_at(const std::string& node, const std::string& message) {
    fail_as(ErrorCode::kDevice, node, ": cuDNN: ", message.substr(0, message.find('\n')),
            "; ONNX_TRAIN_CUDNN=off runs without the library");
  }
};

// Returns the graph of a description on the current device; null without the library or an algorithm. `Graph` is
// constructed from a description; its make(handle) returns false if there is no algorithm.
template <typename Graph, typename Description>
std::shared_ptr<Graph> shared_graph(const Description& description) {
  using Shared = std::shared_ptr<Graph>;
  static auto& graphs = *new RecentlyUsed<std::pair<int, Description>, Shared>;
  CudnnLibrary& library = cudnn_library();
  if (!library.is_loaded()) return nullptr;
  return graphs.find({current_device(), description}, cudnn_limits().graphs, [&]() -> Shared {
    const CudnnHandle handle(library);
    auto graph = std::make_shared<Graph>(description);
    return graph->make(handle.get()) ? graph : nullptr;
  });
}

// Adds a form `name` for each plan of a graph; prepare(plan) prepares the node for a plan that is built.
template <typename Graph, typename Prepare>
void add_plans(const std::shared_ptr<Graph>& graph, const char* name, const Prepare& prepare,
               std::vector<Form>* forms) {
  for (const CudnnPlan& plan : graph->plans()) {
    forms->push_back({name + plan.name, [=, number = plan.number]() -> std::optional<Prepared> {
                        return graph->build(number) ? std::optional<Prepared>(prepare(number)) : std::nullopt;
                      }});
  }
}

}  // namespace onnx_train::cuda
