// How much of what a machine can compute a training takes: what the products and convolutions of a step compute,
// against the rate of one large product, measured on the session's device with its threads and arithmetic. Like PaLM's
// hardware utilization (Chowdhery et al. 2022, appendix B) it counts what is computed again to save memory. The session
// must outlive the object; one thread at a time.
#pragma once

#include <chrono>
#include <optional>

#include "runtime/session/roofline.h"
#include "runtime/training/trainer.h"

namespace onnx_train {

class Utilization {
 public:
  // The rate is measured, which takes half a second, once a training has lasted so long: a short one is not held up.
  explicit Utilization(const Session& session, std::chrono::duration<double> after = std::chrono::seconds(10));

  // From 0 to 1, or a little above it where the machine was busy when it was measured. None before the rate is known,
  // for a model without products, and for several processes on CPUs, which would measure while the others compute.
  std::optional<double> of(const StepReport& report);

 private:
  using Clock = std::chrono::steady_clock;
  const Session& session_;
  const Clock::time_point begins_;
  std::optional<Roofline> rates_;
};

}  // namespace onnx_train
