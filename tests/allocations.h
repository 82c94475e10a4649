// Counts what the program allocates through operator new, on any thread. oneDNN's own calls do not count: version 3.2
// makes a few small allocations in each execution of a primitive, and nothing of ours can stop it.
#pragma once

#include <cstddef>

namespace onnx_train {

// Allocations since the program started.
size_t count_allocations();

}  // namespace onnx_train
