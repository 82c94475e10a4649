#include "runtime/adapt.h"

#include <sstream>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/quantization/qat.h"
#include "onnx_passes/quantization/stored_weights.h"
#include "runtime/build_settings.h"
#include "runtime/data/source.h"

namespace onnx_train {
namespace {

// The one kind of adapter that is asked for; a model has one.
AdapterSpec adapter_spec(const AdaptOptions& options) {
  const int kinds =
      int{!options.lora.empty()} + int{!options.ia3.empty()} + int{options.bitfit} + int{!options.adapter.empty()};
  if (kinds > 1) fail_as(ErrorCode::kUsage, "take one of --lora, --ia3, --bitfit and --adapter");
  if (options.bitfit) return parse_adapter("bitfit", {});
  if (!options.ia3.empty()) return parse_adapter("ia3", options.ia3);
  return options.lora.empty() ? AdapterSpec() : parse_adapter("lora", options.lora);
}

StorageSpec base_spec(const AdaptOptions& options) {
  return parse_storage(options.quantize_base, "--quantize-base", {"int8", "int4"});
}

}  // namespace

std::vector<CommandOption> adapt_options(AdaptOptions* o) {
  return {{"--tie", &o->tie,
           "A=B: weights with the same numbers, also transposed, sliced or repeated, that are one; `check` names those "
           "that "
           "may be",
           "A=B"},
          {"--untie", &o->untie,
           "weights that the file has once and that are several: one for each node that reads them", "NAMES"},
          {"--cut", &o->cut, "inner values that become the outputs; what only the old outputs need is gone", "VALUES"},
          {"--join", {&o->join, file_with(".onnx")}, "append a model whose inputs have the names of outputs", "FILE"},
          {"--head", &o->heads, "OUTPUT=N: a new last layer with N outputs, such as logits=3, drawn from --seed",
           "OUTPUT=N"},
          {"--weights", &o->weights, "initial values by name, from .safetensors or .npz [the model's]", "FILE"},
          {"--weights-partial", &o->weights_partial,
           "with --weights: weights that FILE lacks stay as they are; without, they are an error"},
          {"--lora", &o->lora,
           "train adapters of low rank beside frozen layers: rank=8, alpha=8, dropout=0, rslora=false, dora=false, "
           "targets=PATTERNS of layers [all linear layers but the last]",
           "KEY=VALUE"},
          {"--ia3", &o->ia3, "train scales of layers' outputs, or of inputs: targets=PATTERNS, feedforward=PATTERNS",
           "KEY=VALUE"},
          {"--bitfit", &o->bitfit, "train the biases alone"},
          {"--qat",
           &o->qat,
           "train for integers: int8, weights=per_channel|per_tensor, activations=uint8|int8, observer=ema|minmax, "
           "averaging=0.01 of ema (docs/quantization.md)",
           "int8",
           false,
           {},
           [] { return Words{"int8"}; }},
          {"--quantize-base",
           &o->quantize_base,
           "store the frozen weights beside --lora as integers: int8 or int4, block=64 elements with one scale",
           "TYPE",
           false,
           {},
           [] {
             return Words{"int8", "int4"};
           }},
          {"--adapter", &o->adapter, "start from the adapter in a folder that PEFT or export -o DIR/ wrote", "DIR"}};
}

void adapt(Model* model, const AdaptOptions& options, const std::string& dtype) {
  const AdapterSpec spec = adapter_spec(options);
  std::vector<Pass> passes;
  if (!options.tie.empty()) passes.push_back(tie(options.tie));
  if (!options.untie.empty()) passes.push_back(untie(options.untie));
  if (!options.cut.empty()) passes.push_back(cut(options.cut));
  if (!options.join.empty()) {
    passes.push_back(join(std::make_shared<Model>(load_forward_model(options.join, dtype)), options.join));
  }
  if (!options.heads.empty()) passes.push_back(replace_heads(options.heads, options.seed));
  if (!options.weights.empty()) {
    passes.push_back(assign_weights(std::make_shared<TensorMap>(read_arrays(options.weights)), options.weights,
                                    options.weights_partial ? WeightsOfFile::kSome : WeightsOfFile::kAll));
  } else if (options.weights_partial) {
    fail_as(ErrorCode::kUsage, "--weights-partial is of --weights FILE");
  }
  if (!spec.method.empty()) passes.push_back(add_adapters(spec, options.seed));
  if (!options.quantize_base.empty() && options.adapter.empty())
    passes.push_back(quantize_base(base_spec(options), /*new_adapters=*/true));
  if (!options.qat.empty()) passes.push_back(quantization_aware(parse_qat(options.qat)));
  run_pipeline(passes, model);
  if (options.adapter.empty()) return;
  load_adapters(model, options.adapter);
  if (!options.quantize_base.empty()) run_pipeline({quantize_base(base_spec(options), /*new_adapters=*/false)}, model);
}

std::vector<std::string> adapted_notes(const Model& model) {
  std::vector<std::string> lines;
  std::istringstream text(model.metadata(kAdapted));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

}  // namespace onnx_train
