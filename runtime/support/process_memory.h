// What this process has of memory now, and the most that it ever had, in bytes: VmRSS and VmHWM of /proc/self/status,
// which count pages of mapped files; 0 if the system does not tell. getrusage's peak would count what the process was
// before it became this program. Any thread.
#pragma once

#include <set>

namespace onnx_train {

double resident_memory();
// Of this, the mappings that hold one of the addresses.
double resident_memory_around(const std::set<const void*>& addresses);
double peak_memory();

}  // namespace onnx_train
