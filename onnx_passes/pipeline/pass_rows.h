// A pipeline as a table: its passes in order, each with a line that says what it does. `onnx-train opt` runs passes of
// these tables by name (tools/opt/pass_registry.h). Plain values; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/model/pass.h"

namespace onnx_train {

struct BuildOptions;

struct PassRow {
  Pass pass;
  std::string what;        // "adds the loss to step and evaluate", for people
  bool is_wanted = true;   // whether the options ask for the pass
  std::string needs = {};  // the option without which it can do nothing, "--join"; "" if there is none
  bool evaluates = false;  // of training_rows: a model that is evaluated, and not trained, needs the pass, too
};

// The passes that the options ask for.
inline std::vector<Pass> wanted_passes(const std::vector<PassRow>& rows) {
  std::vector<Pass> passes;
  for (const PassRow& row : rows) {
    if (row.is_wanted) passes.push_back(row.pass);
  }
  return passes;
}

// All passes from an imported model to a training model (training_passes.cc).
std::vector<PassRow> training_rows(const BuildOptions& options);

}  // namespace onnx_train
