#include "tools/opt/pass_page.h"

#include <algorithm>
#include <map>

#include "kernels/device.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/dataset.h"
#include "runtime/models/build_notes.h"
#include "runtime/models/example_inputs.h"
#include "runtime/models/kept_settings.h"
#include "runtime/session/session.h"
#include "runtime/training/checkpoint.h"
#include "tools/opt/text_diff.h"
#include "tools/report/html_text.h"

namespace onnx_train {
namespace {

// Of one pass, and of one line: pages of large models stay readable.
constexpr size_t kMostLines = 2000, kMostCharacters = 400;

constexpr const char* kPageStyle = R"(
:root { color-scheme: light dark; --ink: #1d2026; --soft: #5c6370; --page: #fbfbf9; --card: #fff; --line: #e4e4df;
  --add: #e6f4ea; --cut: #fbe9e7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e7ea; --soft: #9aa1ad; --page: #14161a; --card: #1b1e24;
  --line: #2c3038; --add: #12331f; --cut: #3d1a17; } }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 32px 24px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 32px 0 8px; }
.soft { color: var(--soft); }
details { background: var(--card); border: 1px solid var(--line); border-radius: 6px; margin: 6px 0; }
summary { padding: 4px 12px; cursor: pointer; } details.same { color: var(--soft); }
pre { margin: 0; padding: 6px 0; border-top: 1px solid var(--line); overflow-x: auto; font-size: 13px; }
pre span { display: block; padding: 0 12px; min-height: 1.5em; width: max-content; min-width: 100%; box-sizing: border-box; }
.add { background: var(--add); } .cut { background: var(--cut); } .at { color: var(--soft); }
)";

std::string shown_line(const DiffLine& line) {
  const char* const style = line.kind == '+' ? "add" : line.kind == '-' ? "cut" : line.kind == '@' ? "at" : "";
  std::string text = line.text;
  if (text.size() > kMostCharacters) {
    const size_t left_out = text.size() - kMostCharacters;
    text = concat(text.substr(0, kMostCharacters), " ... ", left_out, " more characters");
  }
  return concat("<span", *style ? concat(" class=\"", style, "\"") : "", ">", std::string(1, line.kind), ' ',
                escaped(text), "</span>");
}

}  // namespace

void PassPage::observe(const PassTiming* pass, const Model& model) {
  std::string text = to_text(model);
  if (pass) {
    Section section{pass->name, pass->nodes_before, pass->nodes_after, 0, 0, ""};
    const std::vector<DiffLine> lines = diff_lines(text_, text);
    for (size_t i = 0; i < lines.size(); ++i) {
      section.added += lines[i].kind == '+';
      section.removed += lines[i].kind == '-';
      if (i < kMostLines) section.lines += shown_line(lines[i]);
    }
    if (lines.size() > kMostLines)
      section.lines += shown_line({'@', concat(lines.size() - kMostLines,
                                               " more lines: --dump-passes and "
                                               "--dump-lowering write whole models")});
    sections_.push_back(std::move(section));
  }
  text_ = std::move(text);
}

size_t PassPage::changes() const {
  return static_cast<size_t>(std::ranges::count_if(sections_, [](const Section& s) { return !s.lines.empty(); }));
}

std::string PassPage::html(const std::string& title, const std::vector<RegisteredPass>& known) const {
  std::map<std::string, const RegisteredPass*> rows;
  for (const RegisteredPass& row : known) rows[row.row.pass.name] = &row;
  std::string page =
      concat("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>", escaped(title),
             "</title>\n<style>", kPageStyle, "</style>\n</head>\n<body>\n<main>\n<h1>", escaped(title),
             "</h1>\n<p class=\"soft\">", changes(), " of ", passes(), " passes change the text of the model</p>\n");
  std::string pipeline;
  for (const Section& section : sections_) {
    const auto found = rows.find(section.pass);
    const std::string of = found == rows.end() ? "" : found->second->pipeline;
    if (of != pipeline) page += concat("<h2>", escaped(of), "</h2>\n");
    pipeline = of;
    const std::string what = found == rows.end() ? "" : found->second->row.what;
    const bool changed = !section.lines.empty();
    const std::string counts = changed ? concat("+", section.added, " -", section.removed, " lines, ",
                                                section.nodes_before, " to ", section.nodes_after, " nodes")
                                       : "no change";
    page += concat("<details", changed ? " open" : " class=\"same\"", "><summary><b>", escaped(section.pass), "</b> ",
                   escaped(what), " <span class=\"soft\">", counts, "</span></summary>",
                   changed ? concat("<pre>", section.lines, "</pre>") : "", "</details>\n");
  }
  return page + "</main>\n</body>\n</html>\n";
}

void run_all_pipelines(const std::string& path, PassSettings settings,
                       const std::function<void(const PassTiming*, const Model&)>& observe) {
  BuildSettings& build = settings.build;
  build.build.pipeline.observe = observe;
  const bool is_forward = load_model(path).entry_points.empty();
  Model model;
  if (is_forward) {
    std::vector<std::string> kept;
    std::vector<Finding> findings;
    model = load_to_build(path, &build, &kept, &findings);
    build_training_model(&model, resolve(build));
  } else {
    model = load_training_model(path);
  }
  SessionOptions options;
  options.device = &Device::find(build.device);
  options.plans_only = true;
  options.plan.pipeline.observe = observe;
  Session session(std::move(model), options);
  const std::vector<InputSpec> inputs = entry_inputs(session.model(), settings.entry);
  constexpr int64_t kBatch = 4;
  // The sizes that import has given are numbers now.
  session.planned(settings.entry,
                  example_shapes(inputs, kBatch, is_forward ? std::vector<std::string>() : build.import.dims));
}

}  // namespace onnx_train
