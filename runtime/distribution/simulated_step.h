// The time of a step on ranks that are not there, from plans that nobody runs: for models and numbers of ranks that no
// machine at hand has the memory for. A node takes its share of a given time, collectives and stages that of a network.
#pragma once

#include "runtime/distribution/simulated_ranks.h"
#include "runtime/session.h"

namespace onnx_train {

struct SimulatedStep {
  double compute = 0;           // seconds, of the rank that computes longest
  double network = 0;           // seconds that the exchanges of that rank take, one after the other
  double time = 0;              // seconds of the step
  double bytes = 0;             // that the rank sends which sends most
  int64_t exchanges = 0;        // of that rank
  size_t state = 0, arena = 0;  // bytes of the rank that has most
};

// A step of `batches` batches of these shapes on `ranks` ranks, of which one alone takes `compute` seconds for a batch
// and the update. `options` say stages and what else ranks agree on, but not the ranks. Throws Error; one thread.
SimulatedStep simulate_step(const Model& model, SessionOptions options, int ranks, int64_t batches,
                            const std::map<std::string, Shape>& batch, const Network& network, double compute);

}  // namespace onnx_train
