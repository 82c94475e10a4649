// What a call fails with.
#pragma once

#include <string>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

// The message of the Error that f() throws; "" if it throws none. Other exceptions pass.
template <typename F>
std::string error_of(const F& f) {
  try {
    f();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace onnx_train
