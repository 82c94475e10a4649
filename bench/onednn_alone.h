// oneDNN without us: the product or convolution of one node on memory of its own.
#pragma once

#include <functional>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// One way to compute a node, to be timed.
struct Contestant {
  const char* name;
  std::function<void()> run;
  int repeats = 1;
  double fastest = 1e9;  // seconds
};

// A product of matrices or a convolution, whatever its element types and layout.
bool is_compared(const Node& node);

// "given": operands where they lie in the plan. "chosen": each in the layout that oneDNN likes best; copying matrices
// there and back is counted, reordering the images and weights of a convolution is not. A way for which oneDNN has only
// its reference loops is left out.
std::vector<Contestant> onednn_alone(const Node& node);

}  // namespace onnx_train
