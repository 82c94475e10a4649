// Locks of files between processes. A lock belongs to the open file: it ends when the last process that has it open
// closes it, however that process ends; a child that inherits the file shares it. File systems without locks give one
// without effect.
#pragma once

#include "platform/file.h"

namespace onnx_train::platform {

// Locks a file that is open for writing; false if another process holds it.
bool lock_file(const File& file);
// Whether lock_file has locked this file through another opening of it, here or in another process.
bool is_locked(const File& file);
// Locks a folder; false if another process holds it.
bool lock_folder(const File& folder);

}  // namespace onnx_train::platform
