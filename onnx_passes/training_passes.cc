// The list of passes that make a training model, in order.
#include "onnx_passes/io/format.h"
#include "onnx_passes/loss/loss.h"
#include "onnx_passes/metrics/metrics.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/delayed_scaling.h"
#include "onnx_passes/precision/mixed_precision.h"
#include "onnx_passes/recognize/recognize.h"
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

}  // namespace

std::vector<Pass> training_passes(const BuildOptions& options) {
  std::vector<Pass> passes = {{"simplify_indexing", simplify_indexing},
                              recognize(options),
                              training_mode(options),
                              mixed_precision(options),
                              loss(options),
                              random_numbers(options),
                              metrics(options),
                              gradients(options)};
  if (options.precision == Precision::kFloat8) passes.push_back({"delayed_scaling", delayed_scaling});
  if (options.accumulate) passes.push_back(accumulate(options));
  passes.push_back(optimizer(options));
  passes.push_back(initialization(options));
  passes.push_back(describe(options));
  passes.push_back({"simplify", simplify});
  return passes;
}

void build_evaluation_model(Model* model, const BuildOptions& options) {
  run_pipeline({{"simplify_indexing", simplify_indexing},
                recognize(options),
                training_mode(options),
                loss(options),
                metrics(options),
                describe(options)},
               model, options.pipeline);
  std::erase_if(model->entry_points, [](const EntryPoint& entry) { return entry.name() != "evaluate"; });
  simplify(*model);
}

std::vector<PassTiming> build_training_model(Model* model, const BuildOptions& options) {
  return run_pipeline(training_passes(options), model, options.pipeline);
}

}  // namespace onnx_train
