#include "kernels/host.h"

#include <omp.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>

namespace onnx_train {
namespace {

// The number in a file; nothing if the file contains "max" or does not exist.
std::optional<size_t> read_number(const std::string& path) {
  std::ifstream file(path);
  size_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// The number after `key` in a file with one key and number per line.
std::optional<size_t> read_entry(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    size_t number = 0;
    if (words >> word >> number && word == key) return number;
  }
  return {};
}

struct GroupFiles {
  const char *limit, *usage, *cached;
};

constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

size_t left_in(const std::string& folder, const GroupFiles& files) {
  const auto limit = read_number(folder + "/" + files.limit), usage = read_number(folder + "/" + files.usage);
  if (!limit || !usage) return SIZE_MAX;
  const size_t cached = read_entry(folder + "/memory.stat", files.cached).value_or(0);
  const size_t used = *usage - std::min(cached, *usage);
  return *limit - std::min(used, *limit);
}

// What the group at `path` and its ancestors leave. In a container `path` is the path on the host, and the files of the
// group are at the root of the mount.
size_t left_in_all(const std::string& mount, std::string path, const GroupFiles& files) {
  size_t left = left_in(mount, files);
  while (path.size() > 1) {
    left = std::min(left, left_in(mount + path, files));
    path.resize(path.find_last_of('/'));
  }
  return left;
}

}  // namespace

size_t available_host_memory(const std::string& root) {
  size_t left = SIZE_MAX;
  if (const auto kib = read_entry(root + "/proc/meminfo", "MemAvailable:")) left = 1024 * *kib;
  std::ifstream groups(root + "/proc/self/cgroup");  // "0::/path", or "4:memory:/path" in version 1
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) left = std::min(left, left_in_all(root + "/sys/fs/cgroup", path, kVersion2));
    if (controllers.find("memory") == std::string::npos) continue;
    left = std::min(left, left_in_all(root + "/sys/fs/cgroup/memory", path, kVersion1));
  }
  return left;
}

size_t available_host_memory() { return available_host_memory(""); }

void set_num_threads(int threads) { omp_set_num_threads(std::max(threads, 1)); }

int num_threads() { return omp_get_max_threads(); }

}  // namespace onnx_train
