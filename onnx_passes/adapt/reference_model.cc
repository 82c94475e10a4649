#include "onnx_passes/adapt/reference_model.h"

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/model/entry_point.h"
#include "onnx_passes/model/flatten.h"
#include "onnx_passes/model/training_versions.h"
#include "onnx_passes/precision/mixed_precision.h"
#include "onnx_passes/training/training_mode.h"

namespace onnx_train {

Model reference_model(const Model& model, const std::string& logits, Precision precision) {
  Model before = flatten(model, Entry::kPredict);
  if (parse_adapter_text(before.metadata(kAdapter)).method == "lora") take_out_adapters(&before);
  Value* output = before.graph->find(logits);
  if (!output) fail("[Loss] dpo: '", logits, "' is no output of the model, so that its reference cannot be made");
  before.graph->set_outputs({output});
  remove_unneeded(&before, {});
  if (precision == Precision::kFloat32) return before;
  BuildOptions rounding;
  rounding.mode = Mode::kFrozen;
  rounding.precision = precision == Precision::kFloat8 ? Precision::kBfloat16 : precision;
  run_pipeline({training_mode(rounding), mixed_precision(rounding)}, &before);
  EntryPoint* step = before.find_entry_point(Entry::kStep);
  Builder b(step->algorithm.get());
  add_result(step, logits, b.var(training_value(*step, before.graph->find(logits))));
  return flatten(before, Entry::kStep);
}

MakeReference reference_maker(const BuildOptions& options) {
  return [precision = options.precision](const Model& model, const std::string& logits, bool rounds) {
    return reference_model(model, logits, rounds ? precision : Precision::kFloat32);
  };
}

}  // namespace onnx_train
