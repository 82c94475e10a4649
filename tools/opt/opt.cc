// The subcommand `opt` runs passes by name on a model or its text, as mlir-opt does. It serves those who change passes.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/pipeline/reduce.h"
#include "runtime/support/report_text.h"
#include "tools/opt/pass_page.h"
#include "tools/opt/pass_registry.h"
#include "tools/report/output.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct OptArguments {
  OptArguments() { settings.build.build.loss.clear(); }  // the usual one, or in a page one that fits the outputs

  std::string model, output, reduce;
  bool lists = false, json = false;
  int64_t tries = 500;
  PassSettings settings;
};

void check_output(const std::string& path) {
  if (path != "-") file_with(std::vector<std::string>{".onnx", ".txt", ".html"})(path);
}

// What a model's text begins with, and no message does.
bool is_text(const MappedFile& file) { return file.size() > 0 && (file.data()[0] == '<' || file.data()[0] == '#'); }

// Reads a model, or its text up to a line `---`, whose header sets options unless --passes is given.
Model read_model(const std::string& path, PassSettings* settings) {
  const auto file = MappedFile::open(path);
  if (!is_text(*file)) return load_model(path);
  const std::string text(reinterpret_cast<const char*>(file->data()), file->size());
  try {
    if (settings->passes.empty()) read_header(text, pass_options(settings));
    return from_text(text.substr(0, text.find("\n---\n")));
  } catch (const UsageError& error) {
    throw UsageError(concat(path, ": ", error.what()), error.code());
  } catch (const Error& error) {
    throw Error(concat(path, ": ", error.what()), error.code());
  }
}

void write_model(const Model& model, const std::string& path) {
  if (path == "-") {
    print(to_text(model));
  } else if (path.ends_with(".txt")) {
    write_file(path, to_text(model));
  } else {
    save_model(model, path);
  }
}

int list_passes_as_json(const PassSettings& settings) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const RegisteredPass& pass : all_passes(settings)) {
    const Pass& row = pass.row.pass;
    rows.push_back(
        {{"pipeline", pass.pipeline}, {"name", row.name}, {"what", pass.row.what}, {"numbers", row.numbers}});
  }
  print(rows.dump() + "\n");
  return 0;
}

int list_passes(const PassSettings& settings) {
  TextTable table("llw");
  std::string pipeline;
  for (const RegisteredPass& pass : all_passes(settings)) {
    table.add({pass.pipeline == pipeline ? "" : pass.pipeline, pass.row.pass.name, pass.row.what});
    pipeline = pass.pipeline;
  }
  print(table.text(0, table_width()));
  return 0;
}

int reduce_model(const OptArguments& a) {
  if (!a.settings.passes.empty()) throw UsageError("--reduce runs its command, and no --passes");
  check_suffix(a.output, ".onnx");
  const ReduceReport report = reduce_file(a.model, a.output, a.reduce, a.tries);
  print(concat(a.output, ": ", report.nodes_after, " of ", report.nodes_before, " nodes, after ", report.tries,
               " tries", report.is_exhausted ? "; --tries allows more\n" : "\n"));
  return 0;
}

// What the passes that are named change, or those of all pipelines. Where a pass fails, what those before it change.
int write_page(const OptArguments& a) {
  PassPage page;
  const auto observe = [&](const PassTiming* pass, const Model& model) { page.observe(pass, model); };
  PassSettings settings = a.settings;
  const auto write = [&] { write_file(a.output, page.html("Passes of " + a.model, all_passes(settings))); };
  try {
    Model model;
    if (!settings.passes.empty() || is_text(*MappedFile::open(a.model))) model = read_model(a.model, &settings);
    settings.build.build.pipeline.observe = observe;
    settings.passes.empty() ? run_all_pipelines(a.model, settings, observe) : run_passes(&model, settings);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception&) {
    if (page.passes() > 0) write();
    throw;
  }
  write();
  print(concat(a.output, ": ", page.changes(), " of ", page.passes(), " passes change the model\n"));
  return 0;
}

int run(const OptArguments& arguments) {
  if (arguments.lists)
    return arguments.json ? list_passes_as_json(arguments.settings) : list_passes(arguments.settings);
  if (arguments.json) throw UsageError("--json goes with --list-passes");
  if (arguments.model.empty()) throw UsageError("give a MODEL, or --list-passes");
  if (arguments.output.empty()) throw UsageError("--output is missing");
  if (!arguments.reduce.empty()) return reduce_model(arguments);
  if (arguments.output.ends_with(".html")) return write_page(arguments);
  PassSettings settings = arguments.settings;
  Model model = read_model(arguments.model, &settings);
  if (settings.passes.empty()) throw UsageError("--passes is missing: the names of the passes to run");
  run_passes(&model, settings);
  write_model(model, arguments.output);
  return 0;
}

}  // namespace

Subcommand opt_command() {
  auto a = std::make_shared<OptArguments>();
  std::vector<CommandOption> options = {
      {"MODEL", &a->model, "an ONNX model, or a model in ONNX's text syntax", "FILE"},
      {"-o,--output",
       {&a->output, check_output},
       "the file to write: .onnx, or .txt, or - for text on standard output; text leaves out large tensors. .html: a "
       "page "
       "of what each pass changes, of all pipelines without --passes",
       "FILE"},
      {"--list-passes", &a->lists, "print the pipelines and what each of their passes does"},
      {"--json", &a->json, "with --list-passes: an array with an object a pass"},
      {"--reduce", &a->reduce,
       "instead of passes: make the model smaller while COMMAND MODEL fails with the same first line of stderr",
       "COMMAND"},
      {"--tries", {&a->tries, kCount}, "with --reduce: how often COMMAND may run [500]", "N"}};
  for (CommandOption& option : pass_options(&a->settings)) options.push_back(std::move(option));
  return {"opt", "Run passes by name on a model or its text, for those who change passes",
          "  onnx-train opt --list-passes\n"
          "  onnx-train opt model.onnx -o passes.html --loss mse\n"
          "  onnx-train opt model.onnx -o after.onnx --passes simplify_indexing,recognize\n"
          "  onnx-train opt model.onnx -o - --passes training_mode,loss --loss cross_entropy\n"
          "  onnx-train opt model.onnx -o small.onnx --reduce 'onnx-train build --optimizer none -o /dev/null'",
          std::move(options), [a] { return run(*a); }};
}

}  // namespace onnx_train
