// Derivatives of a forward model for given inputs: what the command `grad` computes. One thread at a time.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/derivatives/derivative.h"
#include "runtime/data/dataset.h"
#include "runtime/session/session.h"

namespace onnx_train {

// One derivative (derivative.h) on a device.
class DerivativeSession {
 public:
  // From import_model's result. Throws Error as derivative() does.
  DerivativeSession(const Model& forward, Derivative kind, const BuildOptions& options, const SessionOptions& session);

  // The inputs that data provide: the model's and those of the loss.
  const std::vector<InputSpec>& inputs() const { return inputs_; }
  const Preprocess& preprocess() const { return preprocess_; }
  // What was decided about batch norm, and inputs without a derivative.
  const std::vector<std::string>& notes() const { return notes_; }
  bool updates_state() const;  // batch norm's statistics, the key of dropout

  // The vectors that the derivative is multiplied by, each under the name of what it belongs to, as inputs of a run.
  // Directions that are left out are zero. Throws Error for a name that has none and for another shape, and where an
  // output's is left out, whose shape nothing tells.
  TensorMap vectors(const TensorMap& given, const TensorMap& batch) const;

  // The results by their keys: loss, output/<output>, grad/<weight>, grad_input/<input>, vjp/<name>, jvp/<output>,
  // hvp/<name>, next/<state>.
  TensorMap run(const TensorMap& inputs);

 private:
  std::vector<InputSpec> inputs_;
  std::map<std::string, InputSpec> vectors_;  // by what they belong to
  std::map<std::string, std::string> keys_;   // by the names of the outputs
  std::vector<std::string> notes_;
  Preprocess preprocess_;
  std::optional<Session> session_;
};

// The gradients of each sample alone, as rows of loss, grad/<weight> and grad_input/<input>: a run for each sample.
// Throws Error for a model that updates state, for which a sample is no batch.
TensorMap per_sample_gradients(DerivativeSession* gradient, const Dataset& data);

// jacobian/<output>/<name>: the derivative of each element of an output by each of a weight or float input, of the
// shape of the output followed by that of the other; and output/<output>. A run of the vjp for each element of the
// outputs. `outputs` gives the model's. Throws Error where the results do not fit into memory.
TensorMap jacobians(DerivativeSession* vjp, DerivativeSession* outputs, const TensorMap& batch);

}  // namespace onnx_train
