// Why an operator has no gradient, or none of second order: the one table of what is not there. What follows from the
// operators' own tables (a rule, a function body, a row of foreign.h, outputs without floats) is not repeated here; a
// test fails for a row that is not needed, and for an operator that needs one. Constant; any thread.
#pragma once

#include <string_view>
#include <vector>

namespace onnx_train {

enum class Without {
  kGradient,     // its derivative does not exist, or is of no use
  kYet,          // a derivative exists, and no rule of it is written
  kOwnNode,      // importing puts other operators in its place where it can, and these have one
  kSecondOrder,  // it has a gradient, which itself has none
};

struct WithoutGradient {
  const char* op;
  Without what;
  const char* reason;
};

const std::vector<WithoutGradient>& without_gradient_rows();

// The row of an operator of ONNX's own domain; null if there is none. `second_order`: of kSecondOrder alone.
const WithoutGradient* find_without_gradient(std::string_view op, bool second_order = false);

}  // namespace onnx_train
