#include "platform/linux/file_systems.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

namespace onnx_train::platform {

void start_writing_to_disk(const File& file) { sync_file_range(file.descriptor(), 0, 0, SYNC_FILE_RANGE_WRITE); }

bool share_blocks(const File& from, const File& to) { return ioctl(to.descriptor(), FICLONE, from.descriptor()) == 0; }

File memory_file(const char* what) { return File(memfd_create(what, MFD_CLOEXEC)); }

}  // namespace onnx_train::platform
