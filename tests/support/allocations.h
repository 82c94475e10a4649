// Counts what the program allocates through operator new, on any thread, and what it asks oneDNN to make. oneDNN's own
// allocations are counted apart. In version 3.2 dnnl_primitive_execute makes them before it looks at the primitive: the
// table of its arguments (88 bytes) with 32 for each argument, scratch memory among them, and the context of the
// execution (8 and 88); then most implementations take 64 to 104 for themselves: eight in all for a product, and no
// option, of the primitive or of its scratch memory, leaves any of them out. They are freed before it returns, and so
// small that malloc keeps them in the thread's own cache, without a lock.
#pragma once

#include <cstddef>

namespace onnx_train {

// Allocations since the program started.
size_t count_allocations();
size_t count_onednn_allocations();
// Of oneDNN's, that have not been freed.
size_t live_onednn_allocations();
// Bytes of oneDNN's largest allocation since the last call.
size_t largest_onednn_allocation();

// Whether the address is in oneDNN's code.
bool is_onednn(const void* address);

// oneDNN primitives created since the program started.
size_t count_primitives();

}  // namespace onnx_train
