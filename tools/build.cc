#include <cstdio>
#include <filesystem>

#include "kernels/device.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/entry_point.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/pipeline/kept_faults.h"
#include "onnx_passes/training/parameter_groups.h"
#include "runtime/models/adapt.h"
#include "runtime/models/build_notes.h"
#include "runtime/models/build_settings.h"
#include "runtime/models/check_report.h"
#include "runtime/models/example_inputs.h"
#include "runtime/models/kept_settings.h"
#include "runtime/models/model_folder.h"
#include "runtime/models/trial.h"
#include "runtime/support/report_text.h"
#include "runtime/training/metric_sums.h"
#include "tools/config.h"
#include "tools/report/output.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct BuildArguments {
  BuildArguments() { settings.build.loss.clear(); }  // the training model's, or one that fits the outputs

  std::string model, output, config;
  BuildSettings settings;
  bool timings = false, force = false;
};

// Refuses a training model that nothing here can run, before it is written.
void expect_plans(const Model& model, const BuildArguments& arguments, const BuildOptions& options) {
  const BuildSettings& settings = arguments.settings;
  const TrialOptions trial = {options, {}, [&](const std::vector<std::string>& dims) {
                                ImportOptions how = import_options(settings);
                                how.dims.insert(how.dims.end(), dims.begin(), dims.end());
                                return load_forward_model(arguments.model, settings.dtype, how);
                              }};
  const Trial result = try_plans(model, trial, Device::find("cpu"));
  if (result.obstacles.empty()) return;
  fail_as(result.obstacles[0].code, arguments.output,
          " is not written, for it could not be run: ", in_one_sentence(result.obstacles),
          " (--force writes it for other runtimes)");
}

std::string entry_names(const Model& model) {
  std::string names = name_of(Entry::kPredict);
  for (const EntryPoint& entry : model.entry_points) names += concat(", ", entry.name());
  return names;
}

// How much of the model the precision changes: "bf16, of 12 operators".
std::string rounded_text(const Model& model) {
  const std::string count = model.metadata("onnx_train.rounded");
  return count.empty() ? "" : concat(", of ", count, count == "1" ? " operator" : " operators");
}

// How many of the selected weights, with their numbers of elements, the loss depends on: "12 tensors, 5.4k elements".
std::string trained_text(const Model& model, const std::vector<std::pair<std::string, double>>& selected) {
  const std::string untrained = model.metadata("onnx_train.not_trained");  // a list in JSON
  size_t count = 0;
  double elements = 0;
  for (const auto& [name, size] : selected) {
    const std::string list = json_list({name});
    if (untrained.find(list.substr(1, list.size() - 2)) != std::string::npos) continue;
    ++count;
    elements += size;
  }
  return concat(count, " tensors, ", format_count(elements), " elements");
}

int run(const BuildArguments& arguments) {
  BuildSettings settings = arguments.settings;
  std::vector<std::string> kept;
  std::vector<Finding> found;
  Model model = load_to_build(arguments.model, &settings, &kept, &found);
  const BuildOptions options = resolve(settings);
  const auto weights = select_trainable(model, options.train, options.freeze);
  std::vector<std::pair<std::string, double>> selected;
  for (const Value* weight : weights)
    selected.emplace_back(weight->name(), static_cast<double>(num_elements(weight->type().shape())));
  const std::vector<GroupLine> groups = parameter_groups(model, weights, options).lines;
  const std::vector<PassTiming> timings = build_with_notes(&model, options, std::move(found));
  if (!arguments.force) expect_plans(model, arguments, options);
  save_model(model, arguments.output);

  TextTable table("lw");
  table.add({"training model", arguments.output});
  if (const std::string file = model_file(arguments.model); file != arguments.model) table.add({"made from", file});
  for (const std::string& note : adapted_notes(model)) table.add({"changed", note});
  table.add({"trained", trained_text(model, selected)});
  if (!options.init.empty()) table.add({"drawn anew", concat("--init ", options.init, " --seed ", options.seed)});
  for (const char* key : {"loss", "teacher", "reference", "optimizer", "mode", "precision"}) {
    const std::string value = model.metadata(std::string("onnx_train.") + key);
    if (!value.empty()) table.add({key, key == std::string_view("precision") ? value + rounded_text(model) : value});
    if (key == std::string_view("loss")) {
      for (const std::string& line : kept) table.add({"", line});
    }
  }
  if (settings.precision == "auto") {
    if (model.metadata("onnx_train.precision").empty()) table.add({"precision", "float32"});
    table.add({"", concat("auto: ", automatic_precision(settings).why)});
  }
  for (const GroupLine& line : groups) {
    table.add({&line == groups.data() ? "groups" : "",
               concat(line.group, " (", line.tensors, line.tensors == 1 ? " tensor, " : " tensors, ",
                      format_count(line.elements), " elements)")});
  }
  if (options.ema > 0)
    table.add({"average", "of decay " + model.metadata("onnx_train.ema") + ": evaluate, predict and export read it"});
  if (options.swa > 0) {
    const std::string every = options.swa_every > 1 ? concat(", each ", options.swa_every, " steps") : "";
    table.add(
        {"average", concat("mean from step ", options.swa, " on", every, ": evaluate, predict and export read it")});
  }
  table.add({"mean over", model.metadata("onnx_train.mean_over")});
  const MetricSums metrics(model);
  for (size_t i = 0; i < metrics.texts().size(); ++i) table.add({i == 0 ? "metrics" : "", metrics.texts()[i]});
  if (options.accumulate) table.add({"accumulated", model.metadata("onnx_train.accumulate")});
  table.add({"entry points", entry_names(model)});
  std::printf("%s", table.text(0, text_width()).c_str());
  std::printf("%s", notes_text(recorded_notes(model), text_width()).c_str());
  if (!arguments.timings) return 0;
  TextTable times("lrl");
  for (const PassTiming& t : timings)
    times.add({t.name, format_number(t.milliseconds) + " ms", t.changed ? "" : "no change"});
  std::printf("\n%s", times.text(0, table_width()).c_str());
  return 0;
}

}  // namespace

Subcommand build_command() {
  auto a = std::make_shared<BuildArguments>();
  std::vector<CommandOption> options = {
      {"MODEL", &a->model, "the forward model", "FILE", true},
      {"-o,--output", {&a->output, file_with(".onnx")}, "the training model to write, .onnx", "FILE", true}};
  for (CommandOption& option : build_options(&a->settings)) options.push_back(std::move(option));
  PipelineOptions& pipeline = a->settings.build.pipeline;
  options.insert(options.end(),
                 {{"--dump-passes", &pipeline.dump_dir, "write the model after each pass into this folder", "DIR"},
                  {"--verify-passes", &pipeline.verify, "check the model after each pass"},
                  {"--force", &a->force, "write the model even if nothing here can run it"},
                  {"--timings", &a->timings, "say how long each pass took"},
                  config_option(&a->config)});
  return {"build", "Make a training model: loss, gradients, optimizer and their state in one ONNX file",
          "  onnx-train build model.onnx -o train.onnx --loss cross_entropy --optimizer 'adamw(weight_decay=0.05)'\n"
          "  onnx-train build model.onnx -o train.onnx --metric f1 --metric confusion_matrix --metric 'top_k(k=3)'\n"
          "  onnx-train build model.onnx -o train.onnx --head logits=3 --lora rank=8,alpha=16\n"
          "  onnx-train build model.onnx -o head.onnx --train 'fc.*' --optimizer 'sgd(momentum=0.9)' --mode frozen\n"
          "  onnx-train build two_heads.onnx -o train.onnx --loss '0.7*cross_entropy(logits, labels) + 0.3*mse(aux, "
          "target)'",
          std::move(options), [a] {
            return keeping_faults(a->settings.build.pipeline, [&](const PipelineOptions& own) {
              BuildArguments arguments = *a;
              arguments.settings.build.pipeline = own;
              return run(arguments);
            });
          }};
}

}  // namespace onnx_train
