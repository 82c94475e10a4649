// Counts the locks that the program takes through pthread, on any thread, and those that it had to wait for because
// another thread held them: mutexes of C++ and of oneDNN, and oneDNN's reader-writer locks. OpenMP's barriers are none
// of them: libgomp asks the kernel itself.
#pragma once

#include <cstddef>

namespace onnx_train {

// Since the program started. Those that oneDNN's code takes are counted apart, and not among the contended ones.
size_t count_locks();
size_t count_onednn_locks();
size_t count_contended_locks();

}  // namespace onnx_train
