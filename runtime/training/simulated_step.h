// The simulated time of a step on several ranks, from their plans alone: no plan runs, and states have no memory, so
// that models and numbers of ranks may be larger than this machine. A node takes its share of the time of one rank, by
// its cost; a collective takes the time of a modelled network.
#pragma once

#include "runtime/distribution/simulated_ranks.h"
#include "runtime/session/session.h"

namespace onnx_train {

// What one rank alone takes for a batch and the update: one of the two is given.
struct DeviceSpeed {
  double seconds = 0;
  double flops = 0;  // floating-point operations a second, of which the plan counts those of the batch and the update
};

struct SimulatedStep {
  double alone = 0;             // seconds that one rank alone takes for a batch and the update
  double flops = 0;             // operations of that
  double compute = 0;           // seconds, of the rank that computes longest
  double network = 0;           // seconds that the exchanges of that rank take, one after the other
  double time = 0;              // seconds of the step
  double bytes = 0;             // that the rank sends which sends most
  int64_t exchanges = 0;        // of that rank
  size_t state = 0, arena = 0;  // bytes of the rank that has most
};

// A step of `batches` batches of these shapes on `ranks` ranks of this speed. `options` say stages and what else ranks
// agree on, but not the ranks. Throws Error; one thread.
SimulatedStep simulate_step(const Model& model, SessionOptions options, int ranks, int64_t batches,
                            const std::map<std::string, Shape>& batch, const Network& network,
                            const DeviceSpeed& speed);

}  // namespace onnx_train
