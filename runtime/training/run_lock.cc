#include "runtime/training/run_lock.h"

#include <cerrno>
#include <cstring>

#include "onnx_passes/ir/error.h"
#include "platform/lock.h"

namespace onnx_train {

// The folder itself is locked, so that nothing is left in it.
RunLock::RunLock(const std::string& folder) : folder_(platform::open_folder(folder)) {
  if (!folder_.is_open()) fail_as(ErrorCode::kFile, "cannot open the folder ", folder, ": ", std::strerror(errno));
  if (platform::lock_folder(folder_)) return;
  fail_as(ErrorCode::kRunInUse, folder,
          " is the folder of a run that another process trains now; wait for its end, or take another folder");
}

}  // namespace onnx_train
