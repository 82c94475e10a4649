#include "tools/data/mapped_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail("cannot read ", path, ": ", std::strerror(errno));
  struct stat status {};
  const bool regular = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = static_cast<size_t>(regular ? status.st_size : 0);
  void* data = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
  const int error = errno;
  ::close(fd);
  if (!regular) fail(path, " is not a regular file");
  if (data == MAP_FAILED) fail("cannot map ", path, ": ", std::strerror(error));
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<const unsigned char*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<unsigned char*>(data_), size_);
}

}  // namespace onnx_train
