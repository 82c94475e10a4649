#include "tools/opt/pass_registry.h"

#include <algorithm>
#include <memory>
#include <regex>
#include <sstream>

#include "kernels/device.h"
#include "kernels/lowering/descriptions.h"
#include "kernels/lowering/pipeline.h"
#include "onnx_passes/import/import_steps.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"
#include "runtime/models/adapt.h"
#include "runtime/plan/entry_passes.h"
#include "tools/runtime_options.h"

namespace onnx_train {
namespace {

std::vector<PassRow> lowering_rows(const std::string& device_name) {
  const Device& device = Device::find(device_name);
  const auto lowering = std::make_shared<Lowering>(Lowering{device, device.lowering(), {}});
  std::vector<PassRow> rows;
  for (const LoweringPass& pass : lowering_table()) {
    const auto in_plan = [=, &run = pass.run](Model& model) { return run(model, *lowering); };
    rows.push_back({{pass.name, in_plan, pass.phase, pass.numbers}, what_lowering_does(pass.name)});
  }
  return rows;
}

// Of rows with one name, the first that the options ask for, or the first.
void add_rows(const std::string& pipeline, std::vector<PassRow> rows, std::vector<RegisteredPass>* passes) {
  for (PassRow& row : rows) {
    const auto same = std::find_if(passes->begin(), passes->end(), [&](const RegisteredPass& known) {
      return known.pipeline == pipeline && known.row.pass.name == row.pass.name;
    });
    if (same == passes->end()) {
      passes->push_back({pipeline, std::move(row)});
    } else if (row.is_wanted && !same->row.is_wanted) {
      same->row.pass = std::move(row.pass);
      same->row.is_wanted = true;
    }
  }
}

RegisteredPass find_pass(const std::string& name, const std::vector<RegisteredPass>& passes) {
  std::vector<std::string> names;
  for (const RegisteredPass& pass : passes) {
    if (pass.row.pass.name == name) {
      if (pass.row.is_wanted || pass.row.needs.empty()) return pass;
      throw UsageError(concat("the pass '", name, "' needs ", pass.row.needs));
    }
    names.push_back(pass.row.pass.name);
  }
  throw UsageError(concat("there is no pass '", name, "'", did_you_mean(name, names), " (--list-passes lists them)"));
}

// What import sees to, and other passes rely on.
void prepare(Graph* graph) {
  for_each_graph(graph, verify_nodes);
  infer_types(graph);
}

}  // namespace

std::vector<RegisteredPass> all_passes(const PassSettings& settings) {
  std::vector<RegisteredPass> passes;
  BuildSettings build = settings.build;
  if (build.build.loss.empty()) build.build.loss = BuildOptions().loss;
  const ImportOptions forward = import_options(build);
  EntryOptions entry;
  entry.entry = settings.entry;
  add_rows("import", import_rows(forward), &passes);
  add_rows("adapt", adapt_rows(forward.adapt, build.dtype), &passes);
  add_rows("training", training_rows(resolve(build)), &passes);
  add_rows("entry", entry_rows(entry), &passes);
  add_rows("lowering", lowering_rows(build.device), &passes);
  return passes;
}

std::vector<std::string> pass_names() {
  std::vector<std::string> names;
  for (const RegisteredPass& pass : all_passes({})) names.push_back(pass.row.pass.name);
  return names;
}

std::vector<CommandOption> pass_options(PassSettings* settings) {
  std::vector<CommandOption> options = {{"--passes",
                                         &settings->passes,
                                         "the passes to run, in this order [those that the text names]",
                                         "NAMES",
                                         false,
                                         {},
                                         pass_names},
                                        {"--entry",
                                         &settings->entry,
                                         "the entry point that the pass flatten makes one graph of [step]",
                                         "NAME",
                                         false,
                                         {},
                                         entry_names}};
  for (CommandOption& option : build_options(&settings->build)) options.push_back(std::move(option));
  return options;
}

void read_header(const std::string& text, const std::vector<CommandOption>& options) {
  static const std::regex setting(R"(# ([a-z][a-z0-9-]*): (.*))");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line) && line.starts_with("#");) {
    if (std::smatch found; std::regex_match(line, found, setting)) set_option(options, found[1], found[2]);
  }
}

void run_passes(Model* model, const PassSettings& settings) {
  const std::vector<RegisteredPass> known = all_passes(settings);
  std::vector<Pass> passes;
  bool imports = false;
  for (const std::string& name : settings.passes) {
    const RegisteredPass found = find_pass(name, known);
    imports = imports || (passes.empty() && found.pipeline == "import");
    passes.push_back(found.row.pass);
  }
  if (!imports) {
    prepare(model->graph.get());
    for (const EntryPoint& entry : model->entry_points) prepare(entry.algorithm.get());
  }
  run_pipeline(passes, model, settings.build.build.pipeline);
}

}  // namespace onnx_train
