// The rows of the op_cases table as models and tensors: for op_case_test.cc and refusals_test.cc.
#pragma once

#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/tensor.h"
#include "tests/op_cases/op_case.h"

namespace onnx_train {

// The rows of all families.
std::vector<OpCase> all_cases();

// One tensor for each input of the row, empty where it is absent; the same in each call. Floats are float64.
std::vector<Tensor> draw_inputs(const OpCase& row);

// The element type of an input when the case runs in `precision`: rows say kFloat for "either".
DType type_in(const OpInput& spec, const Tensor& tensor, DType precision);

struct Case {
  Model model;
  std::vector<Value*> inputs;   // null where absent
  std::vector<Value*> outputs;  // null where left out
};

// A model of one node. Its inputs x0, x1, .. are `inputs`, those that are constant initializers; `dynamic`: the first
// dimension of the first is a symbol.
Case make_case(const OpCase& row, const std::vector<Tensor>& inputs, DType precision, bool dynamic);

}  // namespace onnx_train
