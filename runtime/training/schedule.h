// The learning rate of each step: a warm-up from zero, then a curve. A pure function of the step; any thread.
#pragma once

#include <cstdint>
#include <string>

namespace onnx_train {

struct Schedule {
  enum class Curve { kConstant, kLinear, kCosine, kStep };

  double peak = 1e-3;  // after the warm-up
  Curve curve = Curve::kConstant;
  int64_t warmup = 0;        // steps: the k-th, counted from 1, has peak k / warmup
  int64_t total = 0;         // steps of the whole training; linear and cosine end there
  double end = 0;            // linear and cosine: the rate that they end at
  int64_t step_every = 0;    // kStep: every so many steps ...
  double step_factor = 0.1;  // ... the rate is multiplied by this

  // The rate of step `step`, counted from 0.
  double rate(int64_t step) const;
};

std::string name_of(Schedule::Curve curve);
// "constant", "linear", "cosine", "step"; throws Error for another name.
Schedule::Curve parse_curve(const std::string& name);

}  // namespace onnx_train
