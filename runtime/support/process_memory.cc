#include "runtime/support/process_memory.h"

#include <cstdlib>
#include <fstream>
#include <string>

namespace onnx_train {
namespace {

double read_kibibytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return 1024 * std::strtod(line.c_str() + key.size(), nullptr);
  }
  return 0;
}

}  // namespace

double resident_memory() { return read_kibibytes("VmRSS:"); }
double resident_pages_of_files() { return read_kibibytes("RssFile:"); }
double peak_memory() { return read_kibibytes("VmHWM:"); }

}  // namespace onnx_train
