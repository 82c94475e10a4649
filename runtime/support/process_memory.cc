#include "runtime/support/process_memory.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace onnx_train {
namespace {

constexpr double kBytesOfKibibyte = 1024;

double read_kibibytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return kBytesOfKibibyte * std::strtod(line.c_str() + key.size(), nullptr);
  }
  return 0;
}

}  // namespace

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

}  // namespace onnx_train
