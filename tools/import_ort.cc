#include <cstdio>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/metrics/metrics.h"
#include "onnx_passes/training/optimizer_spec.h"
#include "runtime/models/build_notes.h"
#include "runtime/onnxruntime/training_import.h"
#include "runtime/support/report_text.h"
#include "tools/report/output.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct ImportOrtArguments {
  std::string output;
  OrtImportSettings settings;
};

int run(const ImportOrtArguments& arguments) {
  const OrtImport imported = import_ort_training(arguments.settings);
  save_model(imported.model, arguments.output);
  TextTable table("lw");
  table.add({"training model", arguments.output});
  for (const auto& [what, text] : imported.notes) table.add({what, text});
  std::printf("%s", table.text(0, text_width()).c_str());
  std::printf("%s", notes_text(recorded_notes(imported.model), text_width()).c_str());
  return 0;
}

OptionTarget each_metric(std::vector<std::string>* metrics) {
  OptionTarget target(metrics);
  target.whole = true;  // a metric may hold commas
  return target;
}

}  // namespace

Subcommand import_ort_command() {
  auto a = std::make_shared<ImportOrtArguments>();
  OrtImportSettings& s = a->settings;
  return {
      "import-ort",
      "Make a training model of a run of ONNX Runtime's on-device training: weights, moments, steps done",
      "  onnx-train import-ort artifacts/ -o train.onnx\n"
      "  onnx-train import-ort artifacts/ --checkpoint saved/epoch_12 -o train.onnx\n"
      "  onnx-train import-ort artifacts/ --prefix custom_ --accumulate -o train.onnx",
      {{"PATH", &s.path,
        "the folder with training_model.onnx, eval_model.onnx, optimizer_model.onnx and checkpoint; or a checkpoint "
        "beside these models",
        "PATH", true},
       {"-o,--output", {&a->output, file_with(".onnx")}, "the training model to write, .onnx", "FILE", true},
       {"--checkpoint", &s.checkpoint, "what save_checkpoint has written, a file or a folder [PATH/checkpoint]",
        "PATH"},
       {"--prefix", &s.prefix, "what the names of the files begin with [nothing]", "TEXT"},
       {"--optimizer",
        &s.optimizer,
        "another optimizer, which begins anew, as build takes it [the run's]",
        "EXPR",
        false,
        {},
        optimizer_names},
       {"--metric",
        each_metric(&s.metrics),
        "a metric that evaluations compute besides the loss, as build takes it; once for each",
        "METRIC",
        false,
        {},
        metric_names},
       {"--accumulate", &s.accumulate, "entry points accumulate and apply instead of step"}},
      [a] { return run(*a); }};
}

}  // namespace onnx_train
