// A pass rewrites a model; a pipeline runs passes in order and can verify, time and dump the result of each. Passes are
// deterministic to the byte. Lowering uses the same types (kernels/lowering). One thread runs a pipeline on a model
// that its caller owns.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct Pass {
  std::string name;                 // "add_gradients"
  std::function<bool(Model&)> run;  // returns whether it changed the model; throws Error "[Name] ..."
  std::string phase = "";           // groups passes in reports
  std::string numbers = "";         // what it leaves as it was, for reports
};

struct PipelineOptions {
  bool verify = false;   // after each pass: ONNX's checker and strict shape inference on every entry point, flattened
  std::string dump_dir;  // when set: NN_name.onnx and NN_name.txt after each pass; the folder is created
};

struct PassTiming {
  std::string name, phase;
  double milliseconds;
  bool changed;
  size_t nodes_before, nodes_after;  // of the inference graph, the whole graph of a plan
  std::string numbers;
};

// Runs the passes in order. An Error of a pass is passed on unchanged; an Error found by `verify` names the pass.
std::vector<PassTiming> run_pipeline(const std::vector<Pass>& passes, Model* model,
                                     const PipelineOptions& options = {});

}  // namespace onnx_train
