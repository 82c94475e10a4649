// The nodes that narrow_storage_test.cc runs with 16-bit operands, by family.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// A node, and the inputs and outputs that may be narrow according to its row in onnx_passes/operators.
struct NarrowCase {
  std::string op, domain;
  std::vector<Tensor> inputs;
  std::vector<int> narrow_inputs, narrow_outputs;
  int num_outputs = 1;
  Attrs attrs = {};
  std::set<int> constants = {};
};

std::vector<NarrowCase> narrow_softmaxes();
std::vector<NarrowCase> narrow_losses();
std::vector<NarrowCase> narrow_normalizations();
std::vector<NarrowCase> narrow_images();
std::vector<NarrowCase> narrow_pools();
std::vector<NarrowCase> narrow_others();
std::vector<NarrowCase> narrow_attentions();

}  // namespace onnx_train
