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
namespace {

// What adds `product`, as its second operand, gives way to its first one.
void bypass(Graph* graph, const Value* product) {
  for (const Use& use : std::vector<Use>(product->uses())) {
    if (use.node->is("Add") && use.index == 1) graph->replace(use.node->output(), use.node->input(0));
  }
}

// Leaves the products of A and B without readers, whatever the weights beside them are stored as.
void bypass_adapters(Model* model) {
  for (const AdapterPart& part : adapter_parts(*model)) {
    Value* up = part.part == parts::kB ? model->graph->find(part.tensor) : nullptr;
    for (const Use& use : up ? std::vector<Use>(up->uses()) : std::vector<Use>()) {
      Value* read = use.node->output();
      if (!use.node->is("Transpose")) {
        bypass(model->graph.get(), read);  // of a convolution
        continue;
      }
      for (const Use& of_transposed : std::vector<Use>(read->uses()))
        bypass(model->graph.get(), of_transposed.node->output());
    }
  }
}

// With DoRA the adapter is in the weight's norm, too.
void remove_adapters(Model* model) {
  const AdapterSpec spec = parse_adapter_text(model->metadata(kAdapter));
  if (spec.method != "lora") return;
  spec.dora ? take_out_adapters(model) : bypass_adapters(model);
}

// Adapters that are still there would make another reference than is said.
void expect_no_adapters(const Model& model) {
  if (parse_adapter_text(model.metadata(kAdapter)).method != "lora") return;
  for (const AdapterPart& part : adapter_parts(model)) {
    if (model.graph->find(part.tensor))
      fail("[Loss] dpo: the adapter '", part.tensor, "' is not beside its layer as it was when the model was built");
  }
}

}  // namespace

Model reference_model(const Model& model, const std::string& logits, Precision precision) {
  Model before = flatten(model, Entry::kPredict);
  remove_adapters(&before);
  Value* output = before.graph->find(logits);
  if (!output) fail("[Loss] dpo: '", logits, "' is no output of the model, so that its reference cannot be made");
  before.graph->set_outputs({output});
  remove_unneeded(&before, {});
  expect_no_adapters(before);
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
