// A file that appears under its name when it is complete, or not at all: it is written under another name in the same
// folder, and takes the place of what is there by one renaming. The destructor removes what was not put in place. One
// owner; one thread. Functions return false with errno set.
#pragma once

#include <string>

#include "platform/file.h"

namespace onnx_train::platform {

class Replacement {
 public:
  Replacement() = default;
  ~Replacement();
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  // Makes the file in `folder`, for FOLDER/NAME.
  bool create(const std::string& folder, const std::string& name);
  // Gives it the permissions of the file of this path, or those of any new file.
  bool take_permissions(const std::string& path);
  bool write(const void* data, size_t size);
  // Writes zeros as a hole, which takes no disk space or time.
  bool skip(size_t size);
  // Has the contents of another file, without copying them; false if the file system cannot do that.
  bool share(const std::string& from);
  // Waits until the contents survive a crash of the machine, then gives the file its name: `path`. The folder is synced
  // by sync_folder.
  bool put_in_place(const std::string& path);

 private:
  std::string temporary_;
  File file_;
  bool ends_in_hole_ = false;  // the last write may have left a hole at the end
  size_t waiting_ = 0;         // bytes written since the last request to start writing to disk
};

}  // namespace onnx_train::platform
