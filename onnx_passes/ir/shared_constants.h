// Constants that the formulas of a graph share (inference/builder.h): their names say type, shape and elements. Pure
// functions.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

inline constexpr std::string_view kSharedConstant = "const/";  // what the names begin with

inline bool is_shared_constant(const Value& value) {
  return value.is_initializer() && value.name().starts_with(kSharedConstant);
}

// The initializers of the graph as files have them: shared constants come last, by name, since which of two is asked
// for first may depend on the compiler.
inline std::vector<const Value*> initializers_in_order(const Graph& graph) {
  std::vector<const Value*> values(graph.initializers().begin(), graph.initializers().end());
  const auto shared =
      std::stable_partition(values.begin(), values.end(), [](const Value* v) { return !is_shared_constant(*v); });
  std::sort(shared, values.end(), [](const Value* a, const Value* b) { return a->name() < b->name(); });
  return values;
}

}  // namespace onnx_train
