// What each pass of the table in pipeline.cc does, in a line, by its name: some names stand there twice. For people;
// docs/lowering.md says more. Any thread.
#pragma once

#include <string>

namespace onnx_train {

// "" if there is no such pass.
std::string what_lowering_does(const std::string& pass);

}  // namespace onnx_train
