#include "runtime/training/simulated_step.h"

#include <algorithm>
#include <thread>

#include "kernels/cost.h"
#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/distribution/pipeline_stages.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// In bytes: what a device with 200 operations for each byte of its memory takes, as GPUs have for 16 bits.
double cost_in_bytes(const Node& node) {
  const NodeCost cost = cost_of(node);
  return std::max(cost.bytes, cost.total_flops() / 200);
}

bool is_exchange(const Node& node) { return is_collective(node) || node.is("Await", kDomain); }

// The plans of a step on one rank.
struct RankPlans {
  std::unique_ptr<Session> session;
  std::unique_ptr<Plan> accumulate, apply;

  // `batch`: the shapes of the inputs of all micro-batches.
  RankPlans(const Model& model, SessionOptions options, const std::map<std::string, Shape>& batch) {
    options.plans_only = true;
    session = std::make_unique<Session>(clone(model), options);
    accumulate = session->planned(Entry::kAccumulate, batch);
    apply = session->planned(Entry::kApply, {});
  }

  size_t arena() const { return std::max(accumulate->arena_bytes(), apply->arena_bytes()); }
};

template <typename CostOf>
double sum_over(const Plan& plan, const CostOf& cost) {
  double sum = 0;
  for (size_t i = 0; i < plan.steps().size(); ++i) {
    const Node& node = *plan.steps()[i].node;
    if (!plan.placement().skipped[i] && !is_exchange(node)) sum += cost(node);
  }
  return sum;
}

// Of the plans of a batch and of the update.
template <typename CostOf>
double sum_over(const RankPlans& plans, const CostOf& cost) {
  return sum_over(*plans.accumulate, cost) + sum_over(*plans.apply, cost);
}

// Memory in the place of all tensors: exchanges read sizes, and nothing is computed.
class Scratch {
 public:
  void take_for(const Plan& plan) {
    for (size_t i = 0; i < plan.steps().size(); ++i) {
      const Node& node = *plan.steps()[i].node;
      if (!is_exchange(node)) continue;
      take(plan.prepared()[i].workspace);
      for (const Value* v : node.inputs()) v ? take(bytes_of(*v)) : void();
      for (const Value* v : node.outputs()) v ? take(bytes_of(*v)) : void();
    }
  }
  Launch launch(const Node& node) {
    memory_.resize(bytes_);
    std::fill_n(memory_.begin(), kLeast, std::byte{0});  // so that a sum has no terms to add
    inputs_.assign(static_cast<size_t>(node.num_inputs()), memory_.data());
    outputs_.assign(static_cast<size_t>(node.num_outputs()), memory_.data());
    return {inputs_.data(), outputs_.data(), memory_.data(), nullptr, &fault_, 1};
  }

 private:
  static size_t bytes_of(const Value& v) {
    return static_cast<size_t>(num_elements(v.type().shape())) * size_of(v.dtype());
  }
  void take(size_t bytes) { bytes_ = std::max(bytes_, bytes); }

  static constexpr size_t kLeast = 64;
  size_t bytes_ = kLeast;
  std::vector<std::byte> memory_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  Fault fault_;
};

void walk(const Plan& plan, double seconds_of_byte, SimulatedRanks* rank) {
  Scratch scratch;
  scratch.take_for(plan);
  for (size_t i = 0; i < plan.steps().size(); ++i) {
    const Node& node = *plan.steps()[i].node;
    if (plan.placement().skipped[i]) continue;
    if (is_exchange(node)) {
      plan.prepared()[i].run(scratch.launch(node));
    } else {
      rank->compute(seconds_of_byte * cost_in_bytes(node));
    }
  }
}

}  // namespace

SimulatedStep simulate_step(const Model& model, SessionOptions options, int ranks, int64_t batches,
                            const std::map<std::string, Shape>& batch, const Network& network,
                            const DeviceSpeed& speed) {
  SessionOptions alone = options;
  alone.topology = {};
  const RankPlans one(model, alone, batch);
  const double flops = sum_over(one, [](const Node& node) { return cost_of(node).total_flops(); });
  const double seconds = speed.seconds > 0 ? speed.seconds : flops / speed.flops;
  const double seconds_of_byte = seconds / sum_over(one, [](const Node& node) { return cost_in_bytes(node); });

  const int stages = options.topology.stages, pipelines = std::max(1, ranks / (stages * options.topology.tensor));
  const auto rounds = static_cast<int>((batches + pipelines - 1) / pipelines);  // of each pipeline, or rank
  const auto batch_of_plans = micro_batch_shapes(batch, stages > 1 ? rounds : 1);
  Rendezvous others;
  std::vector<std::unique_ptr<SimulatedRanks>> simulated;
  std::vector<RankPlans> plans;
  for (int stage = 0; stage < stages; ++stage) {
    simulated.push_back(std::make_unique<SimulatedRanks>(stage, ranks, network, &others, stages));
    if (ranks > 1) options.topology.collectives = simulated.back().get();
    plans.emplace_back(model, options, batch_of_plans);
  }
  std::vector<std::exception_ptr> failures(static_cast<size_t>(stages));
  std::vector<std::thread> threads;
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    threads.emplace_back([&, stage] {
      try {
        for (int i = 0; i < (stages > 1 ? 1 : rounds); ++i)
          walk(*plans[stage].accumulate, seconds_of_byte, simulated[stage].get());
        walk(*plans[stage].apply, seconds_of_byte, simulated[stage].get());
      } catch (...) {
        failures[stage] = std::current_exception();
        others.abandon();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  SimulatedStep step{.alone = seconds, .flops = flops};
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    const SimulatedRanks& rank = *simulated[stage];
    step.time = std::max(step.time, rank.compute_seconds() + rank.stalled_seconds());
    if (rank.compute_seconds() > step.compute) {
      step.compute = rank.compute_seconds();
      step.network = rank.network_seconds();
    }
    if (rank.bytes() >= step.bytes) {
      step.bytes = rank.bytes();
      step.exchanges = rank.exchanges();
    }
    step.state = std::max(step.state, plans[stage].session->state_bytes());
    step.arena = std::max(step.arena, plans[stage].arena());
  }
  return step;
}

}  // namespace onnx_train
