#include <chrono>

#include "onnx_passes/passes/pass.h"

namespace onnx_train {

std::vector<PassTiming> run_pipeline(const std::vector<Pass>& passes, Model* model, const PipelineOptions&) {
  std::vector<PassTiming> timings;
  for (const Pass& pass : passes) {
    const auto start = std::chrono::steady_clock::now();
    const bool changed = pass.run(*model);
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    timings.push_back({pass.name, elapsed.count(), changed});
  }
  return timings;
}

}  // namespace onnx_train
