// Choices between forms of a node (kernels/choices/fastest.h) on the current device. Any thread may call.
#pragma once

#include <string>
#include <vector>

#include "kernels/choices/fastest.h"

namespace onnx_train::cuda {

// `library`: the version of what the forms call.
Prepared fastest(const NodeSpec& spec, const std::string& library, const std::vector<Form>& forms,
                 const SetInputs& set_inputs = nullptr);

}  // namespace onnx_train::cuda
