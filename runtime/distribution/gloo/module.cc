// libonnx_train_gloo.so: what carries the ranks' bytes over Gloo. It is loaded where ranks connect.
#include "runtime/distribution/gloo/gloo_ranks.h"

using namespace onnx_train;

extern "C" __attribute__((visibility("default"))) Collectives* onnx_train_connect_over_gloo(
    const RankPlace& place, Deadline deadline, const std::function<void(const std::string&)>& on_wait) {
  return connect_over_gloo(place, deadline, on_wait).release();
}
