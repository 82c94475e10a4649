// Constants that the formulas of a graph share (inference/builder.h): their names say type, shape and elements. Pure
// functions.
#pragma once

#include <string_view>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

inline constexpr std::string_view kSharedConstant = "const/";  // what the names begin with

inline bool is_shared_constant(const Value& value) {
  return value.is_initializer() && value.name().starts_with(kSharedConstant);
}

}  // namespace onnx_train
