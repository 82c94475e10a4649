#include "runtime/training/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

// The folder itself is locked, so that nothing is left in it.
RunLock::RunLock(const std::string& folder) : descriptor_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) fail_as(ErrorCode::kFile, "cannot open the folder ", folder, ": ", std::strerror(errno));
  if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  close(std::exchange(descriptor_, -1));
  fail_as(ErrorCode::kRunInUse, folder,
          " is the folder of a run that another process trains now; wait for its end, or take another folder");
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace onnx_train
