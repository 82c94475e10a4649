// Locks of an open file description, which Linux has and POSIX since 2024, and flock for folders, which are not open
// for writing.
#include "platform/lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

namespace onnx_train::platform {
namespace {

struct flock whole(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

bool lock_file(const File& file) {
  struct flock lock = whole(F_WRLCK);
  return fcntl(file.descriptor(), F_OFD_SETLK, &lock) == 0 || (errno != EAGAIN && errno != EACCES);
}

bool is_locked(const File& file) {
  struct flock lock = whole(F_RDLCK);
  return fcntl(file.descriptor(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool lock_folder(const File& folder) {
  return flock(folder.descriptor(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

}  // namespace onnx_train::platform
