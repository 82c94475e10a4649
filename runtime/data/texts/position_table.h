// The table of positions of a language model: as many tokens as it has rows can be read at once. Pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct PositionTable {
  std::string weight;
  int64_t positions = 0;  // 0: there is none
};

// The smallest table of weights whose rows are looked up by numbers that the network counts itself (Range, CumSum), or
// gets as an input that is named so, and not by tokens. Positions that are computed, such as rotary ones, have none.
PositionTable position_table(const Model& model);

}  // namespace onnx_train
