// Golden tests of passes: tests/golden/<name>.txt holds a model in ONNX's text syntax, a line `---`, and the model
// after the passes, as to_text writes it. UPDATE_GOLDEN=1 writes the second part anew; read the difference before
// committing it. The bodies of onnx_train's functions are left out: op_cases hold them to their kernels. A file that
// begins with "# passes: NAMES" says itself which passes run, and with which options of `onnx-train opt`, a line each
// ("# loss: mse"); passes/golden_test.cc runs these.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/model/pass.h"

namespace onnx_train {

// Compares the end of docs/<page>, from the line that says that UPDATE_GOLDEN=1 writes it, with what tables say.
void expect_reference(const std::string& page, const std::string& reference);

// Infers the model's types, runs the passes, and compares.
void expect_golden(const std::string& name, const std::vector<Pass>& passes);

// The names of the files that say which passes run, sorted.
std::vector<std::string> golden_names();
// Runs them, and compares.
void expect_golden(const std::string& name);

}  // namespace onnx_train
