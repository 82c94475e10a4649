#include <algorithm>
#include <cstdio>
#include <map>

#include "kernels/device.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes/analysis.h"
#include "tools/arguments.h"
#include "tools/models.h"
#include "tools/report/flops.h"
#include "tools/report/format.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"
#include "tools/trial.h"

namespace onnx_train {
namespace {

struct CheckArguments {
  std::string model, mode = "train", device = "cpu";
  std::vector<std::string> sizes;
  ImportOptions import;
  BuildOptions options;
};

void add_values(TextTable* table, const char* what, const std::vector<Value*>& values) {
  for (const Value* value : values) {
    table->add({value == values.front() ? what : "", value->name() + "  " + to_string(value->type())});
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

void print_findings(const std::vector<Finding>& findings) {
  if (findings.empty()) return;
  TextTable table("llw");
  for (const Finding& f : findings) table.add({f.subject, f.what, f.advice});
  std::printf("\nWorth knowing:\n%s", table.text(2, list_width()).c_str());
}

int report_success(const Model& training, const CheckArguments& arguments) {
  if (const std::string unreached = training.metadata("onnx_train.not_trained"); !unreached.empty())
    std::printf("\nNot trained, for the loss does not depend on them: %s\n", unreached.c_str());
  std::printf("\nIt can be trained. Next: onnx-train build %s -o train.onnx --loss '%s'\n", arguments.model.c_str(),
              arguments.options.loss.c_str());
  return 0;
}

int run(CheckArguments* arguments) {
  BuildOptions& options = arguments->options;
  Device& device = Device::find(arguments->device);
  options.mode = arguments->mode == "train" ? Mode::kTrain : Mode::kFrozen;
  std::vector<Finding> findings;
  Model model = load_forward_model(arguments->model, "float32", arguments->import, &findings);
  const Graph& graph = *model.graph;
  const std::vector<Value*> trainable = select_trainable(model, options.train, options.freeze);
  double parameters = 0;
  for (const Value* value : trainable) parameters += static_cast<double>(num_elements(value->type().shape()));

  TextTable table("lw");
  add_values(&table, "inputs", graph.inputs());
  add_values(&table, "outputs", graph.outputs());
  table.add({"parameters", concat(format_count(parameters), " in ", trainable.size(), " tensors that can be trained")});
  table.add({"operators", concat(graph.num_nodes(), ": ", operators_by_count(graph))});
  table.add({"forward FLOPs", describe_flops(graph)});
  std::printf("%s", table.text(0, list_width()).c_str());
  for (Finding& finding : inspect(model)) findings.push_back(std::move(finding));
  print_findings(findings);

  if (trainable.empty())
    fail("the model has no float weights to train; its input gradients can be had: onnx-train grad");
  if (options.loss.empty()) options.loss = suggest_loss(graph);
  options.optimizer = "sgd";  // what can be trained can be trained by all of them; this one needs no memory
  const std::vector<Hindrance> hindrances = try_training(&model, options, arguments->sizes, device);
  if (hindrances.empty()) return report_success(model, *arguments);
  TextTable list("llw");
  for (const Hindrance& h : hindrances) list.add({h.place, h.reason, h.way_out});
  std::printf("\nIn the way of training it with --loss %s:\n%s", options.loss.c_str(),
              list.text(2, list_width()).c_str());
  fail(arguments->model, " cannot be trained as it is: ", hindrances.size(),
       hindrances.size() == 1 ? " obstacle" : " obstacles");
}

}  // namespace

Subcommand check_command() {
  auto a = std::make_shared<CheckArguments>();
  a->options.loss.clear();
  return {"check",
          "What a model is, whether it can be trained, and everything that is in the way",
          "  onnx-train check model.onnx\n"
          "  onnx-train check model.onnx --freeze 'embeddings.*'",
          {{"MODEL", &a->model, "the forward model", "FILE", true},
           {"--mode",
            &a->mode,
            "frozen: batch norm uses its running statistics, dropout is off [train]",
            "MODE",
            false,
            {"train", "frozen"}},
           {"--loss", &a->options.loss, "as build takes it [what fits the first output]", "EXPR"},
           {"--train", &a->options.train, "weights to train: names, globs, @FILE with one a line [all]", "PATTERNS"},
           {"--freeze", &a->options.freeze, "weights to leave as they are, likewise", "PATTERNS"},
           device_option(&a->device),
           batch_option(&a->import),
           set_option(&a->import),
           fix_shapes_option(&a->import),
           {"--dim",
            {&a->sizes, check_size},
            "NAME=N: a symbolic dimension's size in what is planned [2 samples, else 8]",
            "NAME=N"}},
          [a] { return run(a.get()); }};
}

}  // namespace onnx_train
