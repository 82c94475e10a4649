// The list of passes that make a training model, in order.
#include "onnx_passes/training_passes.h"
#include "onnx_passes/adapt/reference_model.h"
#include "onnx_passes/io/format.h"
#include "onnx_passes/loss/loss.h"
#include "onnx_passes/metrics/metrics.h"
#include "onnx_passes/model/build_options.h"
#include "onnx_passes/pipeline/pass_rows.h"
#include "onnx_passes/precision/delayed_scaling.h"
#include "onnx_passes/precision/mixed_precision.h"
#include "onnx_passes/recognize/recognize.h"
#include "onnx_passes/recognize/simplify.h"
#include "onnx_passes/training/accumulate.h"
#include "onnx_passes/training/backward.h"
#include "onnx_passes/training/initialization.h"
#include "onnx_passes/training/optimizer.h"
#include "onnx_passes/training/training_mode.h"

namespace onnx_train {
namespace {

Pass describe(const BuildOptions& options) {
  return {"describe", [options](Model& model) {
            model.set_metadata(kFormatKey, std::to_string(kFormatVersion));
            model.set_metadata("onnx_train.mode", name(options.mode));
            if (options.precision != Precision::kFloat32)
              model.set_metadata("onnx_train.precision", name(options.precision));
            return true;
          }};
}

PassRow evaluated(PassRow row) {
  row.evaluates = true;
  return row;
}

}  // namespace

std::vector<PassRow> training_rows(const BuildOptions& options) {
  return {
      evaluated({{"simplify_indexing", simplify_indexing}, "makes a Gather of constant indices of several axes"}),
      evaluated({recognize(options), "puts one operator in the place of formulas that spell it out"}),
      evaluated({training_mode(options), "adds the entry point step, with copies of what differs in training"}),
      {mixed_precision(options), "rounds what step multiplies or keeps to 16 bits, as --precision says"},
      evaluated({loss(options, reference_maker(options)), "adds the loss, and the accuracy, to step and evaluate"}),
      {random_numbers(options), "draws the random numbers of the loss from the state's key"},
      evaluated({metrics(options), "adds the statistics of --metric to evaluate"}),
      {gradients(options), "adds the backward pass and the norm of the gradients"},
      {{"delayed_scaling", delayed_scaling},
       "keeps the scales of what step rounds to 8 bits",
       options.precision == Precision::kFloat8},
      {accumulate(options), "cuts step into accumulate and apply", options.accumulate},
      {optimizer(options), "adds new weights, slots and their updates"},
      {initialization(options), "draws the state from a seed"},
      evaluated({describe(options), "records the format, the mode and the precision"}),
      {{"simplify", simplify}, "folds constants, merges equal nodes, removes dead ones"},
  };
}

std::vector<Pass> training_passes(const BuildOptions& options) { return wanted_passes(training_rows(options)); }

void build_evaluation_model(Model* model, const BuildOptions& options) {
  std::vector<PassRow> rows = training_rows(options);
  std::erase_if(rows, [](const PassRow& row) { return !row.evaluates; });
  run_pipeline(wanted_passes(rows), model, options.pipeline);
  std::erase_if(model->entry_points, [](const EntryPoint& entry) { return !entry.is(Entry::kEvaluate); });
  simplify(*model);
}

std::vector<PassTiming> build_training_model(Model* model, const BuildOptions& options) {
  return run_pipeline(training_passes(options), model, options.pipeline);
}

}  // namespace onnx_train
