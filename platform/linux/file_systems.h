// What Linux's file systems do beyond POSIX. Another system may do nothing and return false.
#pragma once

#include "platform/file.h"

namespace onnx_train::platform {

// Lets the system write what the file holds so far, without waiting for it.
void start_writing_to_disk(const File& file);
// Lets `to` share the blocks of `from`; false if the file system does not support it.
bool share_blocks(const File& from, const File& to);

}  // namespace onnx_train::platform
