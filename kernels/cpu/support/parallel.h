// Parallel loops on the process's one thread pool (OpenMP). Small loops stay on the calling thread: starting the pool
// costs about a microsecond, or twenty if its threads sleep. Any thread may call; calls inside a parallel region run
// serially.
#pragma once

#include <cstdint>
#include <exception>
#include <utility>

#include <omp.h>

namespace onnx_train::cpu {

// Splits [0, n) into one contiguous range per thread and calls f(begin, end) for each. `grain` is the number of items
// that makes an additional thread worthwhile. The ranges do not depend on timing, so a sum per range is reproducible
// for a fixed number of threads; reductions that must not depend on that number split by a constant instead (see
// reductions.cc). An exception must not leave an OpenMP region: if f throws, the other ranges still complete, and the
// caller receives the exception of the first range that threw.
template <typename F>
void parallel_for(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  const int64_t wanted = (n + grain - 1) / grain;
  const int threads = static_cast<int>(wanted < omp_get_max_threads() ? wanted : omp_get_max_threads());
  if (threads <= 1 || omp_in_parallel()) return f(int64_t{0}, n);
  std::exception_ptr error;
  int64_t thrower = threads;
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num(), all = omp_get_num_threads();
    const int64_t begin = n * t / all, end = n * (t + 1) / all;
    try {
      if (begin < end) f(begin, end);
    } catch (...) {
#pragma omp critical(onnx_train_parallel_for)
      if (t < thrower) {
        thrower = t;
        error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(std::move(error));
}

constexpr int64_t kElementGrain = 16384;  // element-wise work on floats

}  // namespace onnx_train::cpu
