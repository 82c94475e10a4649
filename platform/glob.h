// Patterns with *, ? and [...], as a shell has them: of names, and of files. Pure but for the files; any thread.
#pragma once

#include <string>
#include <vector>

namespace onnx_train::platform {

// Whether a pattern matches a whole name, as fnmatch(3) does without flags for paths: `*` stands for any characters, /
// and a first dot among them, `?` for one, `[a-c]` and `[!x]` for one of a set. A backslash is a character like others.
bool matches_glob(const std::string& pattern, const std::string& name);

// The files whose paths a pattern matches, in alphabetical order, as glob(3) finds them: here * does not stand for /.
std::vector<std::string> files_of_glob(const std::string& pattern);

}  // namespace onnx_train::platform
