#include <cstdio>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/model/plain_model.h"
#include "onnx_passes/passes.h"
#include "runtime/training/checkpoint.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct FlattenArguments {
  std::string model, entry = name_of(Entry::kStep), output;
};

int run(const FlattenArguments& arguments) {
  const Model flat = plain_model(load_training_model(arguments.model), arguments.entry);
  save_model(flat, arguments.output);
  std::printf("%s: %zu nodes, %zu inputs, %zu outputs\n", arguments.output.c_str(), flat.graph->num_nodes(),
              flat.graph->inputs().size(), flat.graph->outputs().size());
  return 0;
}

}  // namespace

Subcommand flatten_command() {
  auto arguments = std::make_shared<FlattenArguments>();
  return {"flatten",
          "Write one entry point as a plain model whose state is inputs and outputs, for any ONNX runtime",
          "  onnx-train flatten train.onnx -o step.onnx\n"
          "  onnx-train flatten train.onnx --entry evaluate -o evaluate.onnx",
          {{"MODEL", &arguments->model, "a training model or a checkpoint", "FILE", true},
           {"--entry",
            &arguments->entry,
            "predict, evaluate, step, accumulate, apply or initialize [step]",
            "NAME",
            false,
            {},
            entry_names},
           {"-o,--output", {&arguments->output, file_with(".onnx")}, "the .onnx file to write", "FILE", true}},
          [arguments] { return run(*arguments); }};
}

}  // namespace onnx_train
