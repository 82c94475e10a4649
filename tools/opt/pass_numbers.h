// Whether passes leave the numbers of a model as they were. The model after each pass is run as it is, on the same
// inputs, and its outputs are compared with those of the model before the pass: a wrong pass names itself. It serves
// those who change passes. One thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/model/pass.h"
#include "runtime/session/session.h"

namespace onnx_train {

// What one pass has done to the outputs.
struct PassNumbers {
  enum class Verdict {
    kUnchanged,  // the pass has changed nothing
    kAgrees,     // within the bound
    kRounds,     // more, but no further from float64 than the outputs before the pass; or a weight whose slots agree
    kOff,        // more
    kFails,      // the pass fails, or the model after it cannot run
  };

  std::string pass;
  Verdict verdict = Verdict::kUnchanged;
  // Of the output that exceeds its bound the most: ‖after - before‖ / ‖before‖, in the 2-norm; infinite where one has
  // another shape, or another number that is not finite.
  std::string output = {};
  double difference = 0, bound = 0;
  std::string fault = {};  // of kFails
};

// The outputs of a model without states, by name. In float64 if `in_double` is set. Throws Error.
using RunNumbers = std::function<TensorMap(Model model, bool in_double)>;

// How much a pass may change: nothing where its row says so (kEqualInBits), else `sums`, as sums in another
// order do.
struct NumberBounds {
  double sums = 1e-6;
  std::string first = {};  // the pass after which models can run; "" for all
};

class NumberCheck {
 public:
  NumberCheck(RunNumbers run, NumberBounds bounds) : run_(std::move(run)), bounds_(std::move(bounds)) {}

  // As PipelineOptions::observe. What comes before `first` is not looked at.
  void observe(const PassTiming* pass, const Model& model);
  // Outputs that another way of running the last model gives.
  void add(const std::string& pass, const std::string& numbers, const TensorMap& outputs);
  // A pass that fails, or one of those before whose fault is seen later.
  void add_failed(const std::string& pass, const std::string& fault);
  const std::vector<PassNumbers>& rows() const { return rows_; }

 private:
  void describe(const Model& model);
  PassNumbers compare(const std::string& pass, const std::string& numbers, const TensorMap& outputs);
  bool is_rounding(const std::string& output, const Tensor& before, const Tensor& after);

  RunNumbers run_;
  NumberBounds bounds_;
  bool has_begun_ = false;
  bool is_exact_ = true;       // so are all passes since the last model that ran
  Model first_;                // the first model
  TensorMap outputs_;          // of the last one that ran
  std::string norm_;           // its output that is the norm of the gradients; "" if there is none
  bool norm_is_read_ = false;  // by the updates
  // By the new value of a weight, the new values of its slots.
  std::map<std::string, std::vector<std::string>> slots_;
  std::optional<TensorMap> exact_;  // of the first, in float64; empty where that does not run
  std::vector<PassNumbers> rows_;
};

// Runs an entry point of a training model once, and the model after each pass of its lowering besides. The last row is
// of the plan itself. Throws Error for inputs that do not fit, and where the first of these models does not run.
std::vector<PassNumbers> verify_lowering(Model model, const EntryName& entry, const TensorMap& inputs,
                                         SessionOptions options);

}  // namespace onnx_train
