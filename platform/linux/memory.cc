#include "platform/memory.h"

#include <malloc.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

namespace onnx_train::platform {
namespace {

// ---- /proc/self

constexpr double kBytesOfKibibyte = 1024;

double read_kibibytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return kBytesOfKibibyte * std::strtod(line.c_str() + key.size(), nullptr);
  }
  return 0;
}

// ---- Control groups

// Returns the number in a file; nothing if the file contains "max" or does not exist.
std::optional<size_t> read_number(const std::string& path) {
  std::ifstream file(path);
  size_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// Returns the number after `key` in a file with one key and number per line.
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

// Returns the number of cores whose time a group allows; 0 without a limit. Version 2 has one file, "50000 100000",
// microseconds of each period, or "max 100000". Version 1 has two files, where a quota of -1 means no limit.
double quota_in(const std::string& folder, int version) {
  std::ifstream first(folder + (version == 2 ? "/cpu.max" : "/cpu.cfs_quota_us"));
  std::ifstream second(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  const bool read = first >> quota && (version == 2 ? first : second) >> period;
  return read && quota > 0 && period > 0 ? quota / period : 0;
}

// Calls f(folder) for the group at `path` and its ancestors. In a container `path` is the path on the host, and the
// files of the group are at the root of the mount.
template <typename F>
void for_group_and_ancestors(const std::string& mount, std::string path, const F& f) {
  f(mount);
  while (path.size() > 1) {
    f(mount + path);
    path.resize(path.find_last_of('/'));
  }
}

// Calls f(folder, version) for every group that `controller` may limit.
template <typename F>
void for_groups(const std::string& root, const std::string& controller, const F& f) {
  std::ifstream groups(root + "/proc/self/cgroup");  // "0::/path", or "4:cpu,cpuacct:/path" in version 1
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1), mount = root + "/sys/fs/cgroup";
    if (controllers == ",,") {
      for_group_and_ancestors(mount, path, [&](const std::string& folder) { f(folder, 2); });
    } else if (controllers.find("," + controller + ",") != std::string::npos) {
      for_group_and_ancestors(mount + "/" + controller, path, [&](const std::string& folder) { f(folder, 1); });
    }
  }
}

}  // namespace

// VmRSS and VmHWM of /proc/self/status. getrusage's peak would count what the process was before it became this
// program.
double resident_memory() { return read_kibibytes("VmRSS:"); }
double peak_memory() { return read_kibibytes("VmHWM:"); }

double resident_memory_around(const std::set<const void*>& addresses) {
  std::ifstream maps("/proc/self/smaps");
  double total = 0;
  bool holds_one = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    double kibibytes = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      const auto first = addresses.lower_bound(reinterpret_cast<const void*>(begin));
      holds_one = first != addresses.end() && reinterpret_cast<uintptr_t>(*first) < end;
    } else if (holds_one && std::sscanf(line.c_str(), "Rss: %lf kB", &kibibytes) == 1) {
      total += kibibytes * kBytesOfKibibyte;
    }
  }
  return total;
}

void give_back_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

size_t available_memory(const std::string& root) {
  size_t left = SIZE_MAX;
  if (const auto kib = read_entry(root + "/proc/meminfo", "MemAvailable:")) left = 1024 * *kib;
  for_groups(root, "memory", [&](const std::string& folder, int version) {
    left = std::min(left, left_in(folder, version == 1 ? kVersion1 : kVersion2));
  });
  return left;
}

int cores_of_quota(const std::string& root) {
  double least = 0;
  for_groups(root, "cpu", [&](const std::string& folder, int version) {
    const double cores = quota_in(folder, version);
    if (cores > 0) least = least > 0 ? std::min(least, cores) : cores;
  });
  return static_cast<int>(std::ceil(std::min(least, 1e6)));
}

}  // namespace onnx_train::platform
