// Initial state from a seed: fills the entry points' initialization graphs, so that a fresh start needs only the
// training model. Runs after all passes that add state; one caller owns the model. Throws Error for an unknown rule.
//
// Always: slots, accumulators and counters get the values they were built with (zeros), and state/random_key gets
// {seed, 0}. With BuildOptions::init also trained weights, by the rule of that name, and running statistics (mean 0,
// variance 1):
//
//   kaiming   what torch.nn's layers do: linear and convolution weights and their biases uniform in ±1/√fan_in,
//             embeddings normal(0, 1)
//   xavier    weights uniform in ±√(6 / (fan_in + fan_out)), biases 0
//   gpt2      weights normal(0, 0.02), those that write to the residual stream 0.02 / √(their number), biases 0
//
// Scales of norms are 1, their biases 0. A weight whose role is not recognized keeps the file's values. Without `init`
// the trained weights are not changed. The graphs have one initializer, `seed` (uint64), which the runtime overrides.
#pragma once

#include "onnx_passes/model/build_options.h"

namespace onnx_train {

Pass initialization(const BuildOptions& options);

}  // namespace onnx_train
