// The passes that turn a forward model into a training model, and the list that runs them (training_passes.cc).
//
//   import          opset 21 or later, functions inlined, shapes inferred; then recognize: Gelu for what is spelled out
//   indexing        constant multi-axis indices become a Gather
//   training mode   algorithm "step" holds train/<value> copies where training differs from inference
//   mixed precision what "step" rounds to 16 bits, where asked for
//   loss            "step" and "evaluate" get their loss, and the accuracy
//   random numbers  those of the loss in "step" are drawn from the key of the state, as training mode's
//   metrics         "evaluate" gets the statistics of metrics, where asked for
//   gradients       backward pass, global norm
//   delayed scaling scales of what "step" rounds to 8 bits, where asked for
//   accumulate      cut into "accumulate" and "apply" where asked for
//   optimizer       new weights and slots, update bindings
//   initialization  state from a seed
//   simplify        constants, common subexpressions, dead nodes
//
// Names are for people. Passes and the runtime find values by records of the model: bindings, gradients, training
// versions (EntryPoint) and roles (roles.h). If the forward model uses a name for something else, another one is
// chosen: loss_1, state/step_1.
//   inputs          those of the forward model; what the loss names ("labels"); learning_rate, clip_norm (floats with
//                   defaults)
//   outputs         loss, grad_norm, accuracy (class losses with index labels), then nothing else
//   state           <weight>; state/<weight>/<slot>; state/step (int64); state/random_key (uint64[2]: seed, step)
//   values          train/<value>, grad/<value>, next/<state>
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/adapt/adapt_options.h"
#include "onnx_passes/pass.h"

namespace onnx_train {

enum class Mode {
  kTrain,     // batch norm uses and updates batch statistics (but: frozen_statistics.h), dropout is on
  kFrozen,    // batch norm uses its running statistics, dropout is off
  kPreserve,  // as the file says of each node: kTrain where its training_mode is 1 (or true), else kFrozen
};

// Which values of the step are rounded to 16 bits; see mixed_precision.h.
enum class Precision {
  kFloat32,
  kProductsInBfloat16,  // operands of products and convolutions
  kBfloat16,            // activations, too
  kFloat16,             // the same in float16, with a dynamic loss scale unless the options say otherwise
  kFloat8,              // as kBfloat16; products with weights have operands of 8 bits
};

struct LossModel;  // loss_model.h

struct BuildOptions {
  std::string loss = "cross_entropy";                     // see loss_expression.h for the grammar
  std::shared_ptr<const LossModel> loss_model = nullptr;  // takes the place of `loss`
  std::shared_ptr<const LossModel> teacher = nullptr;     // its outputs are teacher.<name> in `loss`
  std::vector<std::string> metrics = {};                  // "f1", "top_k(k=3)"; see metrics/metrics.h
  std::string optimizer = "adamw";                        // "sgd(momentum=0.9, nesterov=1)"; see optimizer_spec.h
  Mode mode = Mode::kTrain;
  Precision precision = Precision::kFloat32;
  std::vector<std::string> train;  // names, globs, @files; empty: every weight (constants.h)
  std::vector<std::string> freeze;
  std::vector<std::string> decay;   // which weights decay; empty: all but biases and norm scales
  std::vector<std::string> groups;  // "head.*: lr=10x"; see parameter_groups.h
  double layer_decay = 1;           // of the learning rate, by the depth of layers; see layer_depth.h
  double ema = 0;   // decay of an average of the weights, which inference reads; 0: none (raw_weights.h)
  int64_t swa = 0;  // or the step from which their mean is kept, over each swa_every-th step; 0: none
  int64_t swa_every = 1;
  double clip_norm = 0;    // default of the input clip_norm; 0: no clipping
  double clip_value = 0;   // of each element of the gradients; 0: no clipping
  std::string loss_scale;  // "", "dynamic", or a number; see loss_scaling.h
  bool accumulate = false;
  bool mean_of_batches = false;   // accumulated batches count equally; otherwise each by what counts in it
  std::string init;               // "", "kaiming", "xavier", "gpt2"
  uint64_t seed = 0;              // default seed of the initialization graph
  bool unbiased_variance = true;  // running variance as torch keeps it; false: as ONNX does
  PipelineOptions pipeline;
};

struct ImportOptions {
  std::string batch = "";               // "", a number, or "dynamic"
  std::vector<std::string> set = {};    // "sr=16000": inputs that become constants; see fix_inputs.h
  std::vector<std::string> dims = {};   // "len=3": sizes of symbolic dimensions; see sizes.h
  std::vector<std::string> train = {};  // stored integers that become weights; see quantization/import_qdq.h
  bool fix_shapes = false;     // declared types that the graph contradicts are dropped, where they are errors otherwise
  AdaptOptions adapt = {};     // what runtime/adapt.h does to the imported model
  bool without_cache = false;  // a cache of earlier keys and values is empty, and is not computed (adapt.h)
};

struct Finding;  // analysis.h

// Imports a forward model into the form that the other passes expect: see import.cc. Throws Error with the reason if
// that is impossible. Adds to `findings`, if given, changes that the user should know.
Model import_model(onnx::ModelProto proto, const ImportOptions& options = {}, std::vector<Finding>* findings = nullptr);

std::vector<Pass> training_passes(const BuildOptions& options);
// Takes import_model's result, returns a training model.
std::vector<PassTiming> build_training_model(Model* model, const BuildOptions& options);
// The same with the entry point "evaluate" alone: loss and metrics, of models without gradients, too.
void build_evaluation_model(Model* model, const BuildOptions& options);

// The float initializers that `train` and `freeze` select for training, in the order of the graph; may be empty.
// Without `train` all but constants (constants.h), which a pattern selects only if it is a constant's name or matches
// no weight. Throws Error for a pattern that matches nothing.
std::vector<Value*> select_trainable(const Model& model, const std::vector<std::string>& train,
                                     const std::vector<std::string>& freeze);
// Why that is empty, in one sentence about the model `name`.
std::string nothing_to_train(const std::string& name, const Graph& graph, const BuildOptions& options);

// Adds roles to the values of a training model that another program wrote, according to their names: loss, accuracy,
// what they count (loss_count, accuracy_count), grad_norm; learning_rate, clip_norm, seed; next/<state>. Values that
// have a role keep it.
void assign_roles(Model* model);

// One entry point as a plain model: graph and algorithm concatenated, without dead nodes. Each state is an input of its
// own name, and its new value an output with the role "next", named next/<state> if that is free; inputs with defaults
// keep them. "predict" is the inference graph alone with its weights as initializers; "initialize" joins all
// initialization graphs (input: seed, with a default).
Model flatten(const Model& model, const std::string& entry);
// The states that an entry point reads or writes, in the order of flatten's inputs.
std::vector<std::string> state_of(const Model& model, const std::string& entry);
// The inference model: without training_info, functions and state used only in training, and without our functions,
// whose bodies are inlined. Of our metadata, what is done to data before the network reads them stays (kPreprocess:
// runtime/data/preprocess.h).
inline constexpr const char* kPreprocess = "onnx_train.preprocess";
Model strip_training(const Model& model);

// Converts x[.., i, j, ..] with constant indices (GatherND between transposes) to a Gather on merged axes.
bool simplify_indexing(Model& model);

// Folds constants, merges equal nodes and removes dead ones, in the inference graph and every entry point.
bool simplify(Model& model);

}  // namespace onnx_train
