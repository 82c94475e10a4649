// Counts what the test program allocates through operator new, on any thread.
#pragma once

#include <cstddef>

namespace onnx_train {

// Allocations since the program started.
size_t count_allocations();

}  // namespace onnx_train
