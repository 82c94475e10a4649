// How a forward model is imported, and what a training model of it is built with. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/model/adapt_options.h"
#include "onnx_passes/model/pass.h"

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
  AdaptOptions adapt = {};     // what runtime/models/adapt.h does to the imported model
  bool without_cache = false;  // a cache of earlier keys and values is empty, and is not computed (adapt.h)
};

}  // namespace onnx_train
