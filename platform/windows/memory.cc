#include "platform/memory.h"

#include <windows.h>

#include <psapi.h>

#include <cstdint>

namespace onnx_train::platform {
namespace {

PROCESS_MEMORY_COUNTERS counters() {
  PROCESS_MEMORY_COUNTERS own = {};
  GetProcessMemoryInfo(GetCurrentProcess(), &own, sizeof own);
  return own;
}

}  // namespace

double resident_memory() { return static_cast<double>(counters().WorkingSetSize); }
double peak_memory() { return static_cast<double>(counters().PeakWorkingSetSize); }
double resident_memory_around(const std::set<const void*>&) { return 0; }

void give_back_freed_memory() {}

size_t available_memory(const std::string&) {
  MEMORYSTATUSEX machine = {};
  machine.dwLength = sizeof machine;
  return GlobalMemoryStatusEx(&machine) ? machine.ullAvailPhys : SIZE_MAX;
}

int cores_of_quota(const std::string&) { return 0; }

}  // namespace onnx_train::platform
