#include <cstdio>

#include "onnx_passes/import/rebatch.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/widen.h"
#include "runtime/data/preprocess.h"
#include "runtime/report_text.h"
#include "runtime/training/checkpoint.h"
#include "tools/report/output.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct ExportArguments {
  std::string model, output;
  bool original_types = false;
};

constexpr const char* kWeights = "weights alone, as .safetensors or .npz: save_weights of the Python package";
std::string shapes_of_inputs(const Graph& graph) {
  std::string text;
  for (const Value* input : graph.inputs())
    text += concat(text.empty() ? "" : ", ", input->name(), " ", to_string(input->type()));
  return text;
}

int run(const ExportArguments& arguments) {
  const Model training = load_training_model(arguments.model);
  Model inference = strip_training(training);
  if (arguments.original_types) {
    const OriginalTypes types = original_types(training);
    if (types.empty())
      fail(arguments.model, " was made from a model without 16-bit floats: leave out --original-types");
    restore_types(&inference, types);
  }
  save_model(inference, arguments.output);
  std::printf("%s: %zu nodes, %zu initializers\n", arguments.output.c_str(), inference.graph->num_nodes(),
              inference.graph->initializers().size());
  const auto say = [](const std::string& note) { std::printf("%s\n", wrap(note, text_width(), 0, 2).c_str()); };
  const Preprocess preprocess(inference);
  if (!preprocess.empty()) {
    say(concat("left out of the graph: ", preprocess.text(),
               "; `onnx-train predict` does it, as the file's metadata say (", kPreprocess,
               "); other programs must do it to their inputs"));
  }
  const std::string batch = training.metadata(kExportedBatch);
  if (!batch.empty()) {
    say(concat("the inputs are ", shapes_of_inputs(*inference.graph),
               ": the training model was built with --batch, and the file it was made from had a batch of ", batch));
  }
  return 0;
}

}  // namespace

Subcommand export_command() {
  auto arguments = std::make_shared<ExportArguments>();
  return {"export",
          "Write the inference model alone: no training_info, no state but the weights",
          "  onnx-train export run/best.onnx -o model.onnx",
          {{"MODEL", &arguments->model, "a training model or a checkpoint", "FILE", true},
           {"-o,--output", {&arguments->output, file_with(".onnx", kWeights)}, "the .onnx file to write", "FILE", true},
           {"--original-types", &arguments->original_types,
            "weights, inputs and outputs that were float16 or bfloat16 before training are so again"}},
          [arguments] { return run(*arguments); }};
}

}  // namespace onnx_train
