// Operators that only lowering makes, and for which op_cases has no rows: the files whose cases run their kernels name
// them here, for the test that every kernel has a case (op_case_test.cc).
#pragma once

#include <set>
#include <string>

namespace onnx_train {

std::set<std::string> narrow_storage_operators();  // narrow_storage_cases.cc
std::set<std::string> narrow_recurrences();        // recurrent_test.cc

}  // namespace onnx_train
