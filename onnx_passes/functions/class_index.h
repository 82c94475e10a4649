// What a label that is no class becomes on its way to the operators that read it as an index. They refuse it, in every
// runtime: a negative index would otherwise count from the end. Constants.
#pragma once

#include <cstdint>

namespace onnx_train {

// ClassIndex (losses.cc) moves labels that are no classes by this far, farther than any axis is long, after limiting
// them to half of it. A product with a number of classes does not overflow.
inline constexpr int64_t kNoClass = -(int64_t{1} << 40);

inline bool is_no_class(int64_t index) { return index <= kNoClass / 2; }

}  // namespace onnx_train
