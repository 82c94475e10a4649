#include "kernels/host.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/spin_limit/spin_limit.h"
#include "platform/memory.h"

namespace onnx_train {
namespace {

// libgomp has read its variables before this runs.
__attribute__((constructor)) void restore_environment() { onnx_train_restore_environment(); }

}  // namespace

size_t available_host_memory(const std::string& root) { return platform::available_memory(root); }

size_t available_host_memory() { return available_host_memory(""); }

int cores_of_quota(const std::string& root) { return platform::cores_of_quota(root); }

void set_num_threads(int threads) { omp_set_num_threads(std::max(threads, 1)); }

int num_threads() { return omp_get_max_threads(); }

int default_threads() {
  static const int quota = std::getenv("OMP_NUM_THREADS") ? 0 : cores_of_quota("");
  return quota > 0 ? std::min(num_threads(), quota) : num_threads();
}

}  // namespace onnx_train
