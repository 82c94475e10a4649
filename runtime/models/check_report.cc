#include "runtime/models/check_report.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>

#include "kernels/device.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/pipeline/kept_faults.h"
#include "onnx_passes/training/nothing_to_train.h"
#include "runtime/models/adapt.h"
#include "runtime/models/build_notes.h"
#include "runtime/models/example_inputs.h"
#include "runtime/models/kept_settings.h"
#include "runtime/models/model_folder.h"
#include "runtime/plan/flops.h"
#include "runtime/support/report_text.h"

namespace onnx_train {
namespace {

void add_values(CheckReport* report, const char* what, const std::vector<Value*>& values) {
  for (const Value* value : values) {
    report->facts.emplace_back(value == values.front() ? what : "", value->name() + "  " + to_string(value->type()));
  }
}

std::string operators_by_count(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const Node* node = graph.first(); node; node = node->next()) {
    ++counts[node->domain().empty() ? node->op() : node->domain() + "." + node->op()];
  }
  std::vector<std::pair<int, std::string>> order;
  for (const auto& [op, count] : counts) order.emplace_back(-count, op);
  std::sort(order.begin(), order.end());
  std::string text;
  for (const auto& [count, op] : order) text += concat(text.empty() ? "" : ", ", op, " ", -count);
  return text;
}

void describe(const Graph& graph, const std::vector<Value*>& trainable, CheckReport* report) {
  double parameters = 0;
  for (const Value* value : trainable) parameters += static_cast<double>(num_elements(value->type().shape()));
  add_values(report, "inputs", graph.inputs());
  add_values(report, "outputs", graph.outputs());
  report->facts.emplace_back(
      "parameters", concat(format_count(parameters), " in ", trainable.size(), " tensors that can be trained"));
  report->facts.emplace_back("operators", concat(graph.num_nodes(), ": ", operators_by_count(graph)));
  report->facts.emplace_back("forward FLOPs", describe_flops(graph));
}

// The options of `check` that `build` takes, too, as they are given.
std::string options_for_build(CheckSettings settings) {
  CheckSettings defaults;
  const std::vector<CommandOption> given = check_options(&settings), usual = check_options(&defaults);
  std::string text;
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string key = key_of(given[i]);
    if (key == "loss" || key == "device") continue;
    const auto value = value_of(given[i]);
    if (!value || value == value_of(usual[i])) continue;
    const bool is_flag = given[i].value.empty();
    text += concat(" --", key, is_flag ? "" : " " + shell_quoted(*value));
  }
  return text;
}

std::string side_by_side(const std::vector<std::string>& sizes) {
  std::string text;
  for (const std::string& size : sizes) text += concat(text.empty() ? "" : " ", size);
  return text;
}

// Says with which sizes the model was tried, if they were not the first.
void add_sizes(const Trial& trial, CheckReport* report) {
  if (trial.unfit.empty()) return;
  if (!trial.fixed) {
    report->findings.push_back({"sizes", concat("planned with ", side_by_side(trial.sizes)),
                                concat("not every size fits the model; with the first that was tried: ", trial.unfit)});
    return;
  }
  for (const std::string& size : trial.sizes) report->options += " --dim " + shell_quoted(size);
  report->findings.push_back({"sizes", concat("it can be built with ", side_by_side(trial.sizes)),
                              concat("without fixed sizes: ", trial.unfit)});
}

// The size of the batch that the file fixes; 0 if there is none.
int64_t fixed_batch(const Graph& graph) {
  const auto first = [](const std::vector<Value*>& values) {
    const bool has_batch = !values.empty() && values[0]->has_rank() && values[0]->rank() > 0;
    return has_batch ? values[0]->type().dims->front() : Dim();
  };
  const Dim batch = first(graph.inputs()), of_output = first(graph.outputs());
  return batch.known() && batch == of_output && graph.inputs()[0]->rank() > 1 ? batch.value() : 0;
}

// A fixed batch is what `fit` then insists on: says so, and how the model is built for any, if that is possible.
void offer_dynamic_batch(int64_t batch, const CheckSettings& settings, const TrialOptions& options,
                         const std::function<Model(const ImportOptions&)>& import, Device& device,
                         CheckReport* report) {
  const std::string what = concat("the file fixes it at ", batch), other = "fit then takes no other --batch-size";
  ImportOptions dynamic = import_options(settings.build);
  dynamic.batch = "dynamic";
  std::string reason;
  try {
    Model model = import(dynamic);
    const Trial trial = try_training(&model, options, device);
    if (trial.obstacles.empty()) {
      report->options += " --batch dynamic";
      report->findings.push_back({"batch", what, "build it with --batch dynamic, or " + other});
      return;
    }
    reason = in_one_sentence(trial.obstacles);
  } catch (const PassFault&) {
    throw;
  } catch (const Error& error) {
    reason = error.what();
  }
  report->findings.push_back({"batch", what, concat(other, "; --batch dynamic does not help: ", reason)});
}

}  // namespace

std::vector<CommandOption> check_options(CheckSettings* s) {
  BuildOptions& o = s->build.build;
  std::vector<CommandOption> options = {
      mode_option(&s->build.mode),
      {"--loss", &o.loss, "as build takes it [what fits the first output]", "EXPR"},
      {"--train", &o.train, "weights to train: names, globs, @FILE with one a line [all]", "PATTERNS"},
      {"--freeze", &o.freeze, "weights to leave as they are, likewise", "PATTERNS"},
      {"--device", &s->device, "what runs the model: a name that `onnx-train devices` lists [cpu]", "NAME"},
      batch_option(&s->build.import),
      set_option(&s->build.import),
      fix_shapes_option(&s->build.import),
      {"--dim",
       {&s->sizes, check_size},
       "NAME=N: a symbolic dimension's size in what is planned [2 samples, else 8]",
       "NAME=N"}};
  for (CommandOption& option : adapt_options(&s->build.import.adapt)) options.push_back(std::move(option));
  return options;
}

namespace {

CheckReport check_once(const ModelMessage& message, const std::string& name, const CheckSettings& settings,
                       const PipelineOptions& pipeline) {
  BuildOptions options = resolve(settings.build);
  options.pipeline = pipeline;
  if (BuildSettings kept = settings.build; options.loss.empty()) {
    keep_settings(message.proto, &kept);
    options.loss = loss_of(message.proto) == kept.build.loss ? kept.build.loss : "";
    options.loss_model = load_loss_model(options.loss, kept.dtype);
  }
  Device& device = Device::find(settings.device);
  CheckReport report;
  const auto import = [&](const ImportOptions& how) {
    return import_forward_model(message, "float32", how, nullptr, pipeline);
  };
  std::vector<Finding> imported;
  Model model = import_forward_model(message, "float32", import_options(settings.build), &imported, pipeline);
  const std::vector<Value*> trainable = select_trainable(model, options.train, options.freeze);
  describe(*model.graph, trainable, &report);
  for (const std::string& note : adapted_notes(model)) report.facts.emplace_back("changed", note);
  try {
    if (trainable.empty()) fail_as(ErrorCode::kNothingToTrain, nothing_to_train(name, *model.graph, options));
    report.loss = options.loss = options.loss.empty() ? suggest_loss(*model.graph) : options.loss;
  } catch (const Error& error) {
    report.failure = error.what();
    report.code = error.code();
  }
  report.findings = build_notes(model, options, std::move(imported));
  if (!report.failure.empty()) return report;
  options.optimizer = "sgd";  // what can be trained can be trained by all of them; this one needs no memory
  report.options = options_for_build(settings);
  const int64_t batch = fixed_batch(*model.graph);
  const TrialOptions trial_options = {options, settings.sizes, [&](const std::vector<std::string>& dims) {
                                        ImportOptions how = import_options(settings.build);
                                        how.dims = dims;
                                        return import(how);
                                      }};
  const Trial trial = try_training(&model, trial_options, device);
  report.obstacles = trial.obstacles;
  add_built_notes(model, &report.findings);
  if (!can_run_models(device))
    report.findings.push_back({"kernels", "whether there is one for each node is not known: this build has none", ""});
  if (!trial.obstacles.empty()) {
    report.failure = concat(name, " cannot be trained as it is: ", in_one_sentence(trial.obstacles));
    report.code = trial.obstacles[0].code;
    return report;
  }
  add_sizes(trial, &report);
  if (batch > 0 && settings.build.import.batch.empty())
    offer_dynamic_batch(batch, settings, trial_options, import, device, &report);
  return report;
}

}  // namespace

CheckReport check_model(ModelMessage message, const std::string& name, const CheckSettings& settings) {
  return keeping_faults(settings.build.build.pipeline,
                        [&](const PipelineOptions& pipeline) { return check_once(message, name, settings, pipeline); });
}

CheckReport check_model(const std::string& path, const CheckSettings& settings) {
  return check_model(load_message(model_file(path)), path, settings);
}

std::string to_text(const std::string& subject, const std::string& what, const std::string& advice, size_t width) {
  return wrap(concat(subject, ": ", what, advice.empty() ? "" : "; ", advice), width, 2, 2) + "\n";
}

std::string to_text(const CheckReport& report, const std::string& name, size_t width, size_t command_width) {
  TextTable facts("lw");
  for (const auto& [what, value] : report.facts) facts.add({what, value});
  std::string text = facts.text(0, width);
  if (!report.findings.empty()) text += "\nWorth knowing:\n";
  for (const Finding& f : report.findings) text += to_text(f.subject, f.what, f.advice, width);
  if (!report.obstacles.empty()) {
    text += wrap(concat("\nIn the way of training it with --loss ", report.loss, ":"), width, 0, 2) + "\n";
  }
  for (const Hindrance& h : report.obstacles) text += to_text(h.place, h.reason, h.way_out, width);
  if (!report.can_be_trained()) return text;
  const std::string build = concat("onnx-train build ", shell_quoted(name), " -o train.onnx", report.options,
                                   " --loss ", shell_quoted(report.loss));
  const std::string next = "It can be trained. Next: " + build;
  if (command_width == 0 || text_columns(next) <= command_width) return concat(text, "\n", next, "\n");
  return concat(text, "\nIt can be trained. Next:\n", wrap_command(build, command_width, 2), "\n");
}

}  // namespace onnx_train
