#include <cstdio>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes/passes.h"
#include "runtime/build_settings.h"
#include "runtime/example_inputs.h"
#include "runtime/format.h"
#include "tools/report/output.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct BuildArguments {
  std::string model, output;
  BuildSettings settings;
  bool timings = false;
};

std::string entry_names(const Model& model) {
  std::string names = "predict";
  for (const EntryPoint& entry : model.entry_points) names += ", " + entry.name();
  return names;
}

int run(const BuildArguments& arguments) {
  const BuildSettings& settings = arguments.settings;
  const BuildOptions options = resolve(settings);
  Model model = load_forward_model(arguments.model, settings.dtype, settings.import);
  double trained = 0;
  const auto weights = select_trainable(model, options.train, options.freeze);
  for (const Value* weight : weights) trained += static_cast<double>(num_elements(weight->type().shape()));
  const size_t count = weights.size();
  const std::vector<PassTiming> timings = build_training_model(&model, options);
  save_model(model, arguments.output);

  TextTable table("lw");
  table.add({"training model", arguments.output});
  table.add({"trained", std::to_string(count) + " tensors, " + format_count(trained) + " elements"});
  for (const char* key : {"loss", "optimizer", "mode", "precision"}) {
    const std::string value = model.metadata(std::string("onnx_train.") + key);
    if (!value.empty()) table.add({key, value});
  }
  table.add({"mean over", model.metadata("onnx_train.mean_over")});
  if (options.accumulate) table.add({"accumulated", model.metadata("onnx_train.accumulate")});
  table.add({"entry points", entry_names(model)});
  std::printf("%s", table.text(0, list_width()).c_str());
  if (!arguments.timings) return 0;
  TextTable times("lrl");
  for (const PassTiming& t : timings)
    times.add({t.name, format_number(t.milliseconds) + " ms", t.changed ? "" : "no change"});
  std::printf("\n%s", times.text(0).c_str());
  return 0;
}

}  // namespace

Subcommand build_command() {
  auto a = std::make_shared<BuildArguments>();
  std::vector<CommandOption> options = {{"MODEL", &a->model, "the forward model", "FILE", true},
                                        {"-o,--output", &a->output, "the training model to write", "FILE", true}};
  for (CommandOption& option : build_options(&a->settings)) options.push_back(std::move(option));
  PipelineOptions& pipeline = a->settings.build.pipeline;
  options.insert(options.end(),
                 {{"--dump-passes", &pipeline.dump_dir, "write the model after each pass into this folder", "DIR"},
                  {"--verify-passes", &pipeline.verify, "check the model after each pass"},
                  {"--timings", &a->timings, "say how long each pass took"}});
  return {
      "build", "Make a training model: loss, gradients, optimizer and their state in one ONNX file",
      "  onnx-train build model.onnx -o train.onnx --loss cross_entropy --optimizer 'adamw(weight_decay=0.05)'\n"
      "  onnx-train build model.onnx -o head.onnx --train 'fc.*' --optimizer 'sgd(momentum=0.9)' --mode frozen\n"
      "  onnx-train build model.onnx -o train.onnx --loss '0.7*cross_entropy(logits, labels) + 0.3*mse(aux, target)'",
      std::move(options), [a] { return run(*a); }};
}

}  // namespace onnx_train
