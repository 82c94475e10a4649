// A cuDNN graph with the library's plans that execute it; nodes with equal descriptions share it. Only files of cuDNN
// kernels include this header, because cudnn-frontend takes a compiler 14 seconds. Graphs are made while kernels are
// chosen, and live while a plan holds them or they are among the recently used ones. Any thread may make and run graphs.
#pragma once

#include <cudnn_frontend.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/cuda/support/cudnn_library.h"
#include "kernels/cuda/support/cudnn_limits.h"
#include "kernels/cuda/support/fastest.h"
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
  // The plans that may execute the graph, the library's own choice first. Only that one is built.
  const std::vector<CudnnPlan>& plans() const { return plans_; }
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

  // A graph of tensors of `type`, computed in float32.
  explicit CudnnGraph(DType type) {
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

  // Finds the plans whose algorithm is deterministic, sums in float32 and has no property in `left_out` or
  // `behavior_left_out`: the first ones of the library's list, and the first one of each engine. Returns false if there
  // is none.
  bool find_plans(cudnnHandle_t handle, const std::vector<fe::NumericalNote_t>& left_out = {},
                  const std::vector<fe::BehaviorNote_t>& behavior_left_out = {}) {
    if (graph_.validate().is_bad() || graph_.build_operation_graph(handle).is_bad() ||
        graph_.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}).is_bad())
      return false;
    using fe::NumericalNote_t;
    graph_.deselect_numeric_notes({NumericalNote_t::NONDETERMINISTIC,               // two runs give equal bits
                                   NumericalNote_t::REDUCED_PRECISION_REDUCTION});  // float16 sums in float16
    graph_.deselect_numeric_notes(left_out);
    graph_.deselect_behavior_notes(behavior_left_out);
    graph_.deselect_workspace_greater_than(cudnn_limits().workspace);
    // The library lists plans by its estimate of their times, often one engine with many settings before the next.
    std::set<std::string> names, engines;
    for (int64_t i = 0; i < graph_.get_execution_plan_count(); ++i) {
      std::string name;
      if (!graph_.supports(i) || graph_.get_plan_name_at_index(i, name).is_bad() || !names.insert(name).second) continue;
      const bool is_new = engines.insert(name.substr(0, name.find('_'))).second;
      if (!is_new && plans_.size() >= cudnn_limits().plans) continue;
      if (!plans_.empty() || build(i)) plans_.push_back({i, name});
      if (!plans_.empty() && !has_choices()) break;
    }
    return !plans_.empty();
  }

  // The library's graph, with a query that it has for its own use.
  struct Graph : fe::graph::Graph {
    // Whether the library supports a plan of its list, and no property of it is left out.
    bool supports(int64_t plan) { return plans.check_support_at_index(plan).is_good(); }
  };
  Graph graph_;

 private:
  std::vector<CudnnPlan> plans_;
  mutable std::mutex mutex_;  // the library does not promise that two threads may run one plan

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
void add_plans(const std::shared_ptr<Graph>& graph, const char* name, const Prepare& prepare, std::vector<Form>* forms) {
  for (const CudnnPlan& plan : graph->plans()) {
    forms->push_back({name + plan.name, [=, number = plan.number]() -> std::optional<Prepared> {
                        return graph->build(number) ? std::optional<Prepared>(prepare(number)) : std::nullopt;
                      }});
  }
}

}  // namespace onnx_train::cuda
