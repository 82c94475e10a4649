#include <cstdio>

#include "onnx_passes/ir/loading.h"
#include "onnx_passes/passes/passes.h"
#include "runtime/checkpoint.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct ExportArguments {
  std::string model, output;
};

int run(const ExportArguments& arguments) {
  const Model inference = strip_training(load_training_model(arguments.model));
  save_model(inference, arguments.output);
  std::printf("%s: %zu nodes, %zu initializers\n", arguments.output.c_str(), inference.graph->num_nodes(),
              inference.graph->initializers().size());
  return 0;
}

}  // namespace

Subcommand export_command() {
  auto arguments = std::make_shared<ExportArguments>();
  return {"export",
          "Write the inference model alone: no training_info, no state but the weights",
          "  onnx-train export run/best.onnx -o model.onnx",
          {{"MODEL", &arguments->model, "a training model or a checkpoint", "FILE", true},
           {"-o,--output", &arguments->output, "the file to write", "FILE", true}},
          [arguments] { return run(*arguments); }};
}

}  // namespace onnx_train
