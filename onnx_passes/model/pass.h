// A pass rewrites a model; a pipeline runs passes in order and can verify, time and dump the result of each. Passes are
// deterministic to the byte. Lowering uses the same types (kernels/lowering). One thread runs a pipeline on a model
// that its caller owns.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "onnx_passes/ir/internal_error.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct Pass {
  std::string name;                 // "add_gradients"
  std::function<bool(Model&)> run;  // returns whether it changed the model; throws Error "[Name] ..."
  std::string phase = "";           // groups passes in reports
  std::string numbers = "";         // what it leaves as it was, for reports
};

struct PassTiming {
  std::string name, phase;
  double milliseconds;
  bool changed;
  size_t nodes_before, nodes_after;  // of the inference graph, the whole graph of a plan
  std::string numbers;
};

// A pass of a pipeline that runs: its name, and its number there, from 1.
struct PassPlace {
  std::string name;
  size_t number = 0;
};

struct PipelineOptions {
  // After each pass: ONNX's checker and strict shape inference on every entry point, flattened.
  bool verify = false;
  std::string dump_dir = {};  // when set: NN_name.onnx and NN_name.txt after each pass; the folder is created
  // When set: called with null before the first pass, and after each pass.
  std::function<void(const PassTiming* pass, const Model& model)> observe = {};
  // When the file is set: it receives the model before that pass (kept_faults.h).
  PassPlace kept = {};
  std::string kept_file = {};

  // Those of a trial, which nobody looks at: only a model before a fault is kept.
  PipelineOptions of_trial() const {
    PipelineOptions own;
    own.kept = kept;
    own.kept_file = kept_file;
    return own;
  }
  // Whether somebody looks at the model before the first pass.
  bool shows_input() const { return !dump_dir.empty() || observe || !kept_file.empty(); }
};

// A bug of ours that a pass has come upon: an exception that is no Error, an InternalError, or a model that is not
// valid after the pass.
class PassFault : public InternalError {
 public:
  PassFault(const std::string& message, PassPlace place) : InternalError(message), place_(std::move(place)) {}
  const PassPlace& place() const { return place_; }
  // Whether the message says how the fault is shown again.
  bool is_kept() const { return is_kept_; }
  PassFault kept(const std::string& message) const {
    PassFault fault(message, place_);
    fault.is_kept_ = true;
    return fault;
  }

 private:
  PassPlace place_;
  bool is_kept_ = false;
};

// Runs the passes in order. An Error of a pass is passed on unchanged, unless it is a bug of ours: PassFault, which
// names the pass.
std::vector<PassTiming> run_pipeline(const std::vector<Pass>& passes, Model* model,
                                     const PipelineOptions& options = {});

}  // namespace onnx_train
