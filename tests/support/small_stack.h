// For tests of what must not recurse once for each node of a model.
#pragma once

#include <cstddef>
#include <functional>

namespace onnx_train {

// Runs f on a thread with a stack of so many bytes: a call for each of thousands of nodes would overflow it. An
// exception is a failure of the test.
void with_small_stack(size_t bytes, std::function<void()> f);

}  // namespace onnx_train
