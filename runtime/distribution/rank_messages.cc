#include "runtime/distribution/rank_messages.h"

#include "onnx_passes/ir/error.h"

namespace onnx_train {

std::string at_another_place(size_t other, int rank, const std::string& what) {
  return concat("rank ", other, " is at another place than rank ", rank, ", which is at ", what,
                ": give all ranks the same command and the same files");
}

std::string of_another_size(int from, size_t sent, const std::string& name, int rank, size_t wanted) {
  return concat("rank ", from, " sends ", sent, " bytes of ", name, ", and rank ", rank, " wants ", wanted,
                ": give all ranks the same command and the same files");
}

std::string is_gone(size_t rank, const std::string& host) {
  return concat("rank ", rank, " (", host, ") is gone: its process was killed, or its machine cannot be reached");
}

std::string heard(size_t rank, bool forwards, const std::string& reason) {
  if (reason.empty()) return concat("rank ", rank, " has ended, and does not say why");
  return forwards ? reason : concat("rank ", rank, " has ended: ", reason);
}

}  // namespace onnx_train
