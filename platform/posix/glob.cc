#include "platform/glob.h"

#include <fnmatch.h>
#include <glob.h>

namespace onnx_train::platform {

bool matches_glob(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

std::vector<std::string> files_of_glob(const std::string& pattern) {
  glob_t found{};
  const int status = glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + (status == 0 ? found.gl_pathc : 0));
  globfree(&found);
  return files;
}

}  // namespace onnx_train::platform
