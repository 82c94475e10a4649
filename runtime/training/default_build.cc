#include "runtime/training/default_build.h"

#include "onnx_passes/ir/message.h"
#include "runtime/build_notes.h"

namespace onnx_train {

DefaultBuild build_for_data(ModelMessage forward, BuildSettings settings, const GuessLoss& guess) {
  Model model = import_forward_model(std::move(forward), settings.dtype, import_options(settings));
  std::string& loss = settings.build.loss;
  LossGuess found;
  if (loss.empty()) {
    found = guess(model);
    loss = found.loss;
  }
  const BuildOptions options = resolve(settings);
  const std::vector<Finding> notes = build_notes(model);
  build_training_model(&model, options);
  record_notes(notes, &model);
  return {std::move(model), loss, found.why};
}

bool is_forward_model(const ModelMessage& message) { return message.proto.training_info().empty(); }

}  // namespace onnx_train
