// How much memory this process can still take.
#pragma once

#include <cstddef>
#include <string>

namespace onnx_train::cpu {

// The lesser of what the machine has available and what the process's control groups allow, in bytes; the largest
// size_t where the system says neither. Files cached on behalf of a group count as available: the kernel drops them.
size_t available_memory();

// The same from files below `root` instead of "/".
size_t available_memory(const std::string& root);

}  // namespace onnx_train::cpu
