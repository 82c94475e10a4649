// What is done with files by their names, with errors that name them. Any thread. platform/file.h has the files
// themselves.
#pragma once

#include <string>
#include <utility>

#include "platform/file.h"

namespace onnx_train {

using platform::File;

// The bytes of a regular file. Throws Error of the code kFile that names it and the cause.
std::string read_file(const std::string& path);

// Whether something has this path. Throws Error where the system cannot tell: what takes an unreadable file for a
// missing one writes over it.
bool path_exists(const std::string& path);
// Whether a folder has; the same.
bool folder_exists(const std::string& path);

// Removes a file. None is fine; throws Error where there is one that stays.
void remove_file(const std::string& path);

// The folder of a path ("." if it has none) and the file name.
std::pair<std::string, std::string> split_path(const std::string& path);

}  // namespace onnx_train
