// A run during which one call of the runtime on the host fails.
#pragma once

#include <functional>
#include <optional>

#include "onnx_passes/ir/error.h"
#include "tests/cuda_on_host/runtime.h"

namespace onnx_train {

struct FailedCall {
  bool reached = false;        // whether the run made as many calls
  std::optional<Error> error;  // what the run has thrown, if anything
};

// Makes call n, counted from 0, of those that `run` makes fail.
inline FailedCall run_with_failing_call(int64_t n, const std::function<void()>& run) {
  FailedCall result;
  const int64_t first = gpu_host::calls();
  gpu_host::fail_call(n);
  try {
    run();
  } catch (const Error& error) {
    result.error = error;
  }
  result.reached = gpu_host::calls() - first > n;
  gpu_host::fail_call(-1);
  return result;
}

}  // namespace onnx_train
