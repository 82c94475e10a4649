#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "kernels/device.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/ir/inlining.h"
#include "onnx_passes/passes/analysis.h"
#include "onnx_passes/passes/training_mode.h"
#include "onnx_passes/passes/training_versions.h"
#include "tools/arguments.h"
#include "tools/models.h"
#include "tools/report/flops.h"
#include "tools/report/format.h"
#include "tools/report/output.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct CheckArguments {
  std::string model, mode = "train";
  BuildOptions options;
};

void add_values(Table* table, const char* what, const std::vector<Value*>& values) {
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

// What no kernel row of the CPU can run, whatever the shapes.
std::vector<Obstacle> missing_kernels(const Graph& graph) {
  std::set<std::pair<std::string, std::string>> known;
  for (const Kernel* kernel : Device::cpu().kernels()) known.emplace(kernel->domain, kernel->op);
  std::vector<Obstacle> obstacles;
  for (const Node* node = graph.first(); node; node = node->next()) {
    // Constants are folded, and Dropout is left out where it drops nothing.
    const bool gone = node->is("Constant") || node->is("Dropout");
    if (gone || known.count({node->domain(), node->op()}) || has_function_body(*node)) continue;
    const Obstacle obstacle{
        node, concat("no kernel runs ", node->op()),
        is_known_operator(*node) ? "replace the operator in the model" : unknown_operator_advice(*node)};
    obstacles.push_back(obstacle);
  }
  return obstacles;
}

// Everything between the weights and the outputs, as training computes them, that has no gradient or no kernel.
std::vector<Obstacle> find_all_obstacles(Model* model, const std::vector<Value*>& trainable,
                                         const BuildOptions& options) {
  run_pipeline({training_mode(options)}, model);
  EntryPoint* step = model->find_entry_point("step");
  std::vector<Obstacle> obstacles = missing_kernels(*model->graph);
  std::vector<Value*> outputs;
  for (Value* output : model->graph->outputs()) {
    if (is_float(output->dtype())) outputs.push_back(step ? training_value(*step, output) : output);
  }
  if (outputs.empty()) fail("none of the model's outputs is a float, so there is nothing a loss could be made of");
  const auto gradients = find_obstacles(outputs, trainable);
  obstacles.insert(obstacles.end(), gradients.begin(), gradients.end());
  return obstacles;
}

void print_findings(const std::vector<Finding>& findings) {
  if (findings.empty()) return;
  Table table("llw");
  for (const Finding& f : findings) table.add({f.subject, f.what, f.advice});
  std::printf("\nWorth knowing:\n%s", table.text(2, list_width()).c_str());
}

int run(CheckArguments* arguments) {
  BuildOptions& options = arguments->options;
  options.mode = arguments->mode == "train" ? Mode::kTrain : Mode::kFrozen;
  Model model = load_forward_model(arguments->model, "float32", options.batch);
  const Graph& graph = *model.graph;
  const std::vector<Value*> trainable = select_trainable(model, options.train, options.freeze);
  double parameters = 0;
  for (const Value* value : trainable) parameters += static_cast<double>(num_elements(value->type().shape()));

  Table table("lw");
  add_values(&table, "inputs", graph.inputs());
  add_values(&table, "outputs", graph.outputs());
  table.add({"parameters", concat(format_count(parameters), " in ", trainable.size(), " tensors that can be trained")});
  table.add({"operators", concat(graph.num_nodes(), ": ", operators_by_count(graph))});
  table.add({"forward FLOPs", describe_flops(graph)});
  std::printf("%s", table.text(0, list_width()).c_str());
  print_findings(inspect(model));

  if (trainable.empty())
    fail("the model has no float weights to train; its input gradients can be had: onnx-train grad");
  const std::vector<Obstacle> obstacles = find_all_obstacles(&model, trainable, options);
  if (obstacles.empty()) {
    std::printf("\nIt can be trained. Next: onnx-train build %s -o train.onnx --loss ...\n", arguments->model.c_str());
    return 0;
  }
  Table list("llw");
  for (const Obstacle& o : obstacles) list.add({o.node->label(), o.reason, o.way_out});
  std::printf("\nIn the way of training it:\n%s", list.text(2, list_width()).c_str());
  fail(arguments->model, " cannot be trained as it is: ", obstacles.size(),
       obstacles.size() == 1 ? " obstacle" : " obstacles");
}

}  // namespace

Subcommand check_command() {
  auto a = std::make_shared<CheckArguments>();
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
           {"--train", &a->options.train, "weights to train: names, globs, @FILE with one a line [all]", "PATTERNS"},
           {"--freeze", &a->options.freeze, "weights to leave as they are, likewise", "PATTERNS"},
           {"--batch",
            {&a->options.batch, dynamic_or_count()},
            "give the batch dimension this size, or make it dynamic [as exported]",
            "N|dynamic"}},
          [a] { return run(a.get()); }};
}

}  // namespace onnx_train
