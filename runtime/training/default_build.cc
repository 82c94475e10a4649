#include "runtime/training/default_build.h"

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/pipeline/kept_faults.h"
#include "runtime/models/build_notes.h"
#include "runtime/models/model_folder.h"
#include "runtime/models/sizes_of_data.h"
#include "runtime/training/checkpoint.h"

namespace onnx_train {

namespace {

DefaultBuild build_once(ModelMessage forward, BuildSettings settings, const GuessLoss& guess, BuildFor purpose) {
  std::vector<Finding> imported;
  Model model = import_forward_model(std::move(forward), settings.dtype, import_options(settings), &imported,
                                     settings.build.pipeline);
  std::string& loss = settings.build.loss;
  LossGuess found;
  if (loss.empty()) {
    found = guess(model);
    loss = found.loss;
  }
  const BuildOptions options = resolve(settings);
  if (purpose == BuildFor::kEvaluation) {
    build_evaluation_model(&model, options);
    return {std::move(model), loss, found.why, "", true};
  }
  build_with_notes(&model, options, std::move(imported));
  return {std::move(model), loss, found.why, "", true};
}

}  // namespace

DefaultBuild build_for_data(const ModelMessage& forward, const BuildSettings& settings, const GuessLoss& guess,
                            const ReadInputs& read, BuildFor purpose) {
  const auto sizes = [&] {
    const Model model = import_forward_model(forward, settings.dtype, import_options(settings));
    return sizes_of_data(model, read(model), settings.import.dims, /*is_one_batch=*/false);
  };
  std::string note;
  DefaultBuild built =
      with_sizes_of_data(settings.import.dims, sizes, &note, [&](const std::vector<std::string>& dims) {
        BuildSettings sized = settings;
        sized.import.dims = dims;
        return keeping_faults(settings.build.pipeline, [&](const PipelineOptions& pipeline) {
          sized.build.pipeline = pipeline;
          return build_once(forward, sized, guess, purpose);
        });
      });
  built.sizes = note;
  if (!note.empty() && purpose == BuildFor::kTraining) {
    std::vector<Finding> notes = recorded_notes(built.model);
    notes.push_back({"", note, ""});
    record_notes(notes, &built.model);
  }
  return built;
}

DefaultBuild load_or_build(const std::string& path, const BuildSettings& settings, const GuessLoss& guess,
                           const ReadInputs& read, BuildFor purpose) {
  ModelMessage message = load_message(model_file(path));
  if (!message.proto.training_info().empty()) return {training_model(std::move(message), path), "", "", "", false};
  return build_for_data(message, settings, guess, read, purpose);
}

}  // namespace onnx_train
