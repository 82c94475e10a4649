#include "runtime/check_report.h"

#include <algorithm>
#include <map>

#include "kernels/device.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/passes/constants.h"
#include "runtime/example_inputs.h"
#include "runtime/flops.h"
#include "runtime/format.h"

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

}  // namespace

std::vector<CommandOption> check_options(CheckSettings* s) {
  BuildOptions& o = s->build.build;
  return {{"--mode",
           &s->build.mode,
           "frozen: batch norm uses its running statistics, dropout is off [train]",
           "MODE",
           false,
           {"train", "frozen"}},
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
}

CheckReport check_model(ModelMessage message, const std::string& name, const CheckSettings& settings) {
  BuildOptions options = resolve(settings.build);
  Device& device = Device::find(settings.device);
  CheckReport report;
  Model model = import_forward_model(std::move(message), "float32", settings.build.import, &report.findings);
  const std::vector<Value*> trainable = select_trainable(model, options.train, options.freeze);
  describe(*model.graph, trainable, &report);
  for (Finding& finding : inspect(model)) report.findings.push_back(std::move(finding));
  for (Finding& finding : describe_constants(model, trainable)) report.findings.push_back(std::move(finding));
  if (trainable.empty()) {
    report.failure = "the model has no float weights to train; its input gradients can be had: onnx-train grad";
    return report;
  }
  try {
    report.loss = options.loss = options.loss.empty() ? suggest_loss(*model.graph) : options.loss;
  } catch (const Error& error) {
    report.failure = error.what();
    return report;
  }
  options.optimizer = "sgd";  // what can be trained can be trained by all of them; this one needs no memory
  report.obstacles = try_training(&model, options, settings.sizes, device);
  report.not_trained = model.metadata("onnx_train.not_trained");
  const size_t count = report.obstacles.size();
  if (count > 0) {
    report.failure = concat(name, " cannot be trained as it is: ", count, count == 1 ? " obstacle" : " obstacles");
  }
  return report;
}

CheckReport check_model(const std::string& path, const CheckSettings& settings) {
  return check_model(load_message(path), path, settings);
}

std::string to_text(const CheckReport& report, const std::string& name, size_t width) {
  TextTable facts("lw");
  for (const auto& [what, value] : report.facts) facts.add({what, value});
  std::string text = facts.text(0, width);
  TextTable findings("llw"), obstacles("llw");
  for (const Finding& f : report.findings) findings.add({f.subject, f.what, f.advice});
  if (!report.findings.empty()) text += "\nWorth knowing:\n" + findings.text(2, width);
  for (const Hindrance& h : report.obstacles) obstacles.add({h.place, h.reason, h.way_out});
  if (!report.obstacles.empty()) {
    text += concat("\nIn the way of training it with --loss ", report.loss, ":\n", obstacles.text(2, width));
  }
  if (!report.can_be_trained()) return text;
  if (!report.not_trained.empty())
    text += concat("\nNot trained, for the loss does not depend on them: ", report.not_trained, "\n");
  return text +
         concat("\nIt can be trained. Next: onnx-train build ", name, " -o train.onnx --loss '", report.loss, "'\n");
}

}  // namespace onnx_train
