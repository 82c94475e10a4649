#include "runtime/models/inference_export.h"

#include "onnx_passes/adapt/serve_adapters.h"
#include "onnx_passes/adapt/test_time_augmentation.h"
#include "onnx_passes/foreign/map_outputs.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/widen.h"
#include "onnx_passes/quantization/store_quantized.h"
#include "runtime/models/cached_export.h"
#include "runtime/models/export_into.h"
#include "runtime/session/session_settings.h"

namespace onnx_train {
namespace {

bool is_quantized(const Graph& graph) {
  const Node* node = graph.first();
  while (node && !node->is("QuantizeLinear")) node = node->next();
  return node != nullptr;
}

}  // namespace

bool stores_other_type(const ExportSettings& settings) {
  return !settings.dtype.empty() && settings.dtype != std::vector<std::string>{"float32"};
}

std::vector<CommandOption> export_options(ExportSettings* settings) {
  return {{"--merge", &settings->merge, "fold adapters into the weights beside them: the graph is the original one"},
          {"--cache", &settings->cache,
           "a language model with inputs past_key_values.N.key and .value and outputs present.N.*: it reads new tokens "
           "alone"},
          {"--dtype",
           &settings->dtype,
           "store the weights as float16, bfloat16, int8 or int4; integers have a scale for each block=32 of them "
           "[float32]",
           "TYPE",
           false,
           {},
           [] {
             return Words{"float32", "float16", "bfloat16", "int8", "int4"};
           }},
          {"--tta",
           {&settings->tta, check_views},
           "average the outputs over views of the pictures, as nodes of the graph: flip, vflip, shift(1), or several",
           "VIEWS",
           false,
           {},
           view_names},
          {"--original-types", &settings->original_types,
           "weights, inputs and outputs that were float16 or bfloat16 before training are so again"},
          {"--adapter-inputs", &settings->adapter_inputs,
           "the model without its adapters, which are optional inputs: ONNX Runtime's LoraAdapter fills them from "
           ".onnx_adapter files"},
          {"--into", &settings->into,
           "put the weights into this model, which has the same under other names, transposed or in another type, and "
           "leave all else of it as it is; of a folder (Optimum, GenAI) all files are copied to -o DIR",
           "FILE|DIR"},
          {"--base", &settings->base,
           "with --into: the model that was trained, as it was before, by whose values weights are found [the run's "
           "MODEL, or that of --into]",
           "FILE|DIR"}};
}

InferenceExport strip_and_merge(const Model& training, const ExportSettings& settings, const std::string& name) {
  InferenceExport made;
  made.model = strip_training(training);
  if (!settings.merge) return made;
  if (!has_adapters(made.model)) fail(name, " has no adapters: leave out --merge");
  made.restored = dequantize_weights(&made.model);
  made.merged = merge_adapters(&made.model);
  return made;
}

InferenceExport export_inference(const Model& training, const ExportSettings& settings, const std::string& name) {
  if (settings.adapter_inputs && settings.merge)
    fail_as(ErrorCode::kUsage,
            "--merge folds adapters into the weights, and --adapter-inputs takes them out: take one");
  if (!settings.base.empty()) fail_as(ErrorCode::kUsage, "--base is of --into");
  InferenceExport made = strip_and_merge(training, settings, name);
  Model& inference = made.model;
  if (settings.cache) made.cached = add_compared_cache(&inference);
  if (settings.adapter_inputs) made.inputs = serve_adapters(&inference, trained_besides(training));
  if (settings.original_types) {
    OriginalTypes types = original_types(training);
    if (types.empty()) fail(name, " was made from a model without 16-bit floats: leave out --original-types");
    if (has_adapters(inference)) fail("--original-types narrows weights, and adapters are float32: add --merge");
    for (const auto& [merged, base] : made.merged.untied) {  // one of the two names is that of the shared weight
      if (const auto known = types.find(types.count(base) ? base : merged); known != types.end()) {
        const DType dtype = known->second;
        types[merged] = types[base] = dtype;
      }
    }
    restore_types(&inference, types);
  }
  if (stores_other_type(settings)) {
    made.storage = parse_storage(settings.dtype, "--dtype", {"float16", "bfloat16", "int8", "int4"});
    if (is_quantized(*inference.graph))
      fail(name, " was trained for integers, and is exported with them: leave out --dtype");
    if (has_adapters(inference)) fail("--dtype stores weights, and adapters are layers of their own: add --merge");
    made.rounded = store_weights(&inference, made.storage);
  }
  average_over_views(&inference, parse_views(settings.tta), Entry::kPredict);
  made.integers = store_quantized(&inference);
  pack_four_bits(&inference);
  restore_maps(&inference, training);
  return made;
}

std::string inputs_note(const std::vector<std::string>& inputs) {
  return concat("the adapters are inputs now, which may be left out: ",
                first_few(inputs, size_t{3}, [](const std::string& name) { return name; }));
}

ModelMessage export_message(const Model& training, const ExportSettings& settings, const std::string& name) {
  if (!settings.into.empty()) return export_into(training, settings, name).message;
  return to_message(export_inference(training, settings, name).model);
}

}  // namespace onnx_train
