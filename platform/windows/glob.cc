// Windows has neither fnmatch nor glob. Classes of characters, [[:digit:]], are not known here.
#include "platform/glob.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "platform/windows/wide.h"

namespace onnx_train::platform {
namespace {

namespace fs = std::filesystem;

// Whether the set that begins at pattern[*at], "[a-c]", holds `c`; moves *at past it. A set without an end is none: [
// stands for itself.
bool in_set(std::string_view pattern, char c, size_t* at) {
  const auto byte = [](char of) { return static_cast<unsigned char>(of); };
  size_t i = *at + 1;
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (negated) ++i;
  bool found = false;
  for (const size_t first = i; i < pattern.size() && (pattern[i] != ']' || i == first);) {
    const bool is_range = i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']';
    const char last = is_range ? pattern[i + 2] : pattern[i];
    found = found || (byte(pattern[i]) <= byte(c) && byte(c) <= byte(last));
    i += is_range ? 3 : 1;
  }
  if (i >= pattern.size()) {
    ++*at;
    return c == '[';
  }
  *at = i + 1;
  return found != negated;
}

// Adds the paths that begin with `start`, and whose rest matches the parts of a pattern from `parts` on.
void find_files(const std::string& start, std::string_view pattern, std::vector<std::string>* found) {
  const size_t slash = pattern.find('/');
  const std::string part(pattern.substr(0, slash));
  const bool is_last = slash == std::string_view::npos;
  const auto go_on = [&](const std::string& name) {
    if (is_last) {
      found->push_back(start + name);
    } else {
      find_files(start + name + "/", pattern.substr(slash + 1), found);
    }
  };
  std::error_code error;
  if (part.find_first_of("*?[") == std::string::npos) {
    if (!is_last || fs::exists(wide(start + part), error)) go_on(part);
    return;
  }
  for (const auto& entry : fs::directory_iterator(wide(start.empty() ? "." : start), error)) {
    const std::string name = narrow(entry.path().filename().native());
    if ((name[0] != '.' || part[0] == '.') && matches_glob(part, name)) go_on(name);
  }
}

}  // namespace

// A star that was passed is tried again, longer, where the rest does not match: the last one alone, which is enough.
bool matches_glob(const std::string& pattern, const std::string& name) {
  size_t p = 0, n = 0, star = std::string::npos, after_star = 0;
  while (n < name.size()) {
    size_t next = p + 1;
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      after_star = n;
    } else if (p < pattern.size() && (pattern[p] == '[' ? in_set(pattern, name[n], &(next = p))
                                                        : pattern[p] == '?' || pattern[p] == name[n])) {
      p = next;
      ++n;
    } else if (star != std::string::npos) {
      p = star + 1;
      n = ++after_star;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string::npos;
}

std::vector<std::string> files_of_glob(const std::string& pattern) {
  std::vector<std::string> files;
  find_files("", pattern, &files);
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace onnx_train::platform
