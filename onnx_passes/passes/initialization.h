// State from a seed: fills the entry points' initialization graphs, so that a fresh start needs no file but the
// training model. Runs after every pass that makes state.
//
// Always: slots, accumulators and counters get the values they were built with (zeros); state/random_key {seed, 0}.
// With BuildOptions::init also what is trained, by the rule of that name, and running statistics (mean 0, variance 1):
//
//   kaiming   what torch.nn's layers do: linear and convolution weights and their biases uniform in ±1/√fan_in,
//             embeddings normal(0, 1)
//   xavier    weights uniform in ±√(6 / (fan_in + fan_out)), biases 0
//   gpt2      weights normal(0, 0.02), those that write to the residual stream 0.02 / √(their number), biases 0
//
// Scales of norms are 1, their biases 0. A weight whose role is not recognized keeps the file's values. Without `init`
// the trained weights are not touched. The graphs have one initializer, `seed` (uint64), for the runtime to override.
#pragma once

#include "onnx_passes/passes/passes.h"

namespace onnx_train {

Pass initialization(const BuildOptions& options);

}  // namespace onnx_train
