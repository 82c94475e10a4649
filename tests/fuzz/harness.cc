#include "tests/fuzz/harness.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "onnx_passes/io/file.h"

namespace onnx_train::fuzz {
namespace {

struct OwnFolder {
  std::filesystem::path path;

  // In memory, unless something says where: what is written with fsync takes milliseconds on a disk.
  OwnFolder() {
    const bool in_memory = !std::getenv("TMPDIR") && access("/dev/shm", W_OK) == 0;
    const std::filesystem::path parent = in_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    std::string pattern = (parent / "onnx_train_fuzz.XXXXXX").string();
    if (!mkdtemp(pattern.data())) fail("cannot make a folder like ", pattern);
    path = pattern;
  }
  ~OwnFolder() {
    std::error_code error;
    std::filesystem::remove_all(path, error);
  }
};

}  // namespace

const std::filesystem::path& folder() {
  static const OwnFolder own;
  return own.path;
}

// A new file: what still maps an earlier one keeps that.
std::string file_of(Input input, const std::string& name) {
  const std::string path = folder() / name;
  remove_file(path);
  File file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.is_open() || !file.write(input.data(), input.size())) std::abort();
  return path;
}

}  // namespace onnx_train::fuzz
