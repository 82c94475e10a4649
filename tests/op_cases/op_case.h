// One table of operators serves every check of a rule or a kernel. A row says how to call an operator; the harness
// (op_case_test.cc) derives from it:
//   - the shapes that inference gives are those that the kernel writes,
//   - float32 agrees with float64 within `tolerance`, and with `expected` where the row gives it,
//   - a kernel of ours agrees with the body of its function,
//   - every float input has a gradient, and its directional derivative in float64, by central differences, agrees with
//     the gradient graph within 1e-6; where the row says that a gradient is zero, differences are zero, too,
//   - a dynamic batch (first dimension of the first input) gives the same numbers as a static one.
// A test fails for every rule and every kernel without a row.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "onnx_passes/inference/builder.h"

namespace onnx_train {

// How one input is made. Floats are drawn uniformly from [low, high] with a fixed seed, in float64 and rounded for
// float32; `away_from` keeps a distance of 0.05 from the listed kinks.
struct OpInput {
  Shape shape = {};
  double low = -1;
  double high = 1;
  std::vector<double> away_from = {};
  Tensor value = {};            // given contents instead; its dtype is kept, but kFloat as below
  DType dtype = DType::kFloat;  // kFloat stands for "float32 and float64 in turn"; integers are drawn from [low, high]
  bool constant = false;        // an initializer (axes, shapes, indices) rather than an input of the model
  bool zero_gradient = false;   // no float output changes with it, but for jumps: its gradient is zero or missing
  std::string no_derivative = "";  // why a float input has none, or none that differences could tell
  bool absent = false;             // an optional input left out
  bool single = false;             // a float value that is float32 in either precision (the scales of a Resize)
  bool distinct = false;           // all elements differ by at least 0.01 (Max, TopK, pools: away from ties)
};

using Ints = std::vector<int64_t>;

// A constant list of sizes.
inline OpInput sizes(const Ints& values) { return {.shape = {}, .value = Tensor::ints(values), .constant = true}; }

// All elements apart, so that no step of a difference changes which is the largest.
inline OpInput apart(Shape shape) { return {.shape = std::move(shape), .distinct = true}; }

struct OpCase {
  std::string op;
  std::vector<OpInput> inputs;
  Attrs attrs = {};
  int num_outputs = 1;
  std::string domain = "";  // "onnx_train": a function of functions.h
  double tolerance = 1e-5;  // of float32 against float64, relative to the largest element
  std::function<Tensor(const std::vector<Tensor>&)> expected = nullptr;  // first output, from the float64 inputs
  bool gradient = true;            // false: no float input reaches a float output, or only lowering makes the operator
  std::string no_derivative = "";  // why the row has none that differences could tell, although a rule gives one
  std::string no_body = "";        // why the body of the function does not run here
  bool dynamic = true;             // also with a symbolic first dimension
  int64_t opset = 21;              // later for an operator that came later
};

void PrintTo(const OpCase& row, std::ostream* out);  // how a failing row introduces itself (op_case_test.cc)

}  // namespace onnx_train
