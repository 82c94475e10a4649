// Counts what the program allocates through operator new, on any thread, and what it asks oneDNN to make. oneDNN's own
// allocations are counted apart: version 3.2 makes a few small ones in each execution of a primitive (the table of its
// arguments), and nothing of ours can stop it.
#pragma once

#include <cstddef>

namespace onnx_train {

// Allocations since the program started.
size_t count_allocations();
size_t count_onednn_allocations();

// oneDNN primitives created since the program started.
size_t count_primitives();

}  // namespace onnx_train
