#include "runtime/training/default_build.h"

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/message.h"
#include "runtime/build_notes.h"
#include "runtime/training/checkpoint.h"

namespace onnx_train {

DefaultBuild build_for_data(ModelMessage forward, BuildSettings settings, const GuessLoss& guess, BuildFor purpose) {
  std::vector<Finding> imported;
  Model model = import_forward_model(std::move(forward), settings.dtype, import_options(settings), &imported);
  std::string& loss = settings.build.loss;
  LossGuess found;
  if (loss.empty()) {
    found = guess(model);
    loss = found.loss;
  }
  const BuildOptions options = resolve(settings);
  if (purpose == BuildFor::kEvaluation) {
    build_evaluation_model(&model, options);
    return {std::move(model), loss, found.why, true};
  }
  build_with_notes(&model, options, std::move(imported));
  return {std::move(model), loss, found.why, true};
}

DefaultBuild load_or_build(const std::string& path, const BuildSettings& settings, const GuessLoss& guess,
                           BuildFor purpose) {
  ModelMessage message = load_message(path);
  if (!message.proto.training_info().empty()) return {training_model(std::move(message), path), "", "", false};
  return build_for_data(std::move(message), settings, guess, purpose);
}

}  // namespace onnx_train
