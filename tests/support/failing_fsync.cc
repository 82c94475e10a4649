#include "tests/support/failing_fsync.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace onnx_train {
namespace {

std::atomic<int> calls_to_failing_fsync{-1};  // below 0: it has failed, or none is to fail

}  // namespace

FailingFsync::FailingFsync(int number) { calls_to_failing_fsync = number; }
FailingFsync::~FailingFsync() { calls_to_failing_fsync = -1; }
bool FailingFsync::reached() const { return calls_to_failing_fsync < 0; }

}  // namespace onnx_train

// In the place of the C library's.
extern "C" int fsync(int descriptor) {
  if (onnx_train::calls_to_failing_fsync >= 0 && onnx_train::calls_to_failing_fsync-- == 0) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}
