// Work over the one pool of threads. Small work stays on the calling thread: waking the pool costs about a
// microsecond, twenty when it sleeps.
#pragma once

#include <cstdint>

#include <omp.h>

namespace onnx_train::cpu {

// Splits [0, n) into one contiguous piece per thread and calls f(begin, end) for each. `grain` is how many items are
// worth a thread of their own. Pieces do not depend on timing, so a sum per piece is reproducible for one number of
// threads; reductions that must not depend on that number split by a constant instead (see reductions.cc).
template <typename F>
void parallel_for(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  const int64_t wanted = (n + grain - 1) / grain;
  const int threads = static_cast<int>(wanted < omp_get_max_threads() ? wanted : omp_get_max_threads());
  if (threads <= 1 || omp_in_parallel()) return f(int64_t{0}, n);
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num(), all = omp_get_num_threads();
    const int64_t begin = n * t / all, end = n * (t + 1) / all;
    if (begin < end) f(begin, end);
  }
}

constexpr int64_t kElementGrain = 16384;  // element-wise work on floats

}  // namespace onnx_train::cpu
