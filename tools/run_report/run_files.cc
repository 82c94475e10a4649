#include "tools/run_report/run_files.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"
#include "runtime/runs/metrics_log.h"
#include "tools/report/class_tables.h"

namespace onnx_train {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

// An object, or null.
ordered_json read_object(const std::string& path, std::vector<std::string>* notes) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  std::ifstream file(path);
  ordered_json object = ordered_json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (object.is_object()) return object;
  notes->push_back(concat(fs::path(path).filename().string(), " is damaged and left out."));
  return {};
}

std::string count_of(size_t n, const char* what) { return concat(n, " ", what, n == 1 ? "" : "s"); }

void read_evaluations(const std::string& path, RunFiles* run) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return;
  std::ifstream file(path);
  size_t damaged = 0;
  std::string line;
  while (std::getline(file, line) && !file.eof()) {  // a line without an end is being written
    const auto object = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || !object.contains("step") || !object["step"].is_number()) {
      ++damaged;
      continue;
    }
    const double step = object["step"].get<double>();
    if (object.contains("best") && object["best"] == true) run->best_step = step;
    for (const auto& [key, value] : object.items()) {
      if (key == "step" || !(value.is_number() || value.is_null())) continue;
      Series& series = run->evaluations[key];
      if (!series.x.empty() && step < series.x.back()) continue;
      series.x.push_back(step);
      series.y.push_back(value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN());
    }
  }
  if (damaged > 0)
    run->notes.push_back(count_of(damaged, "line") + " of epochs.jsonl cannot be read and are left out.");
}

}  // namespace

std::string text_of(const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number_float()) return number_text(value.get<double>());
  if (value.is_number()) return value.dump();
  std::string text;
  if (!value.is_array()) return text;
  for (const auto& item : value) {
    if (!item.is_array()) text += concat(text.empty() ? "" : ", ", text_of(item));
  }
  return text;
}

std::string RunFiles::option(const std::string& key) const {
  return options.is_object() && options.contains(key) ? text_of(options[key]) : "";
}

const ordered_json* RunFiles::find_derived(const std::string& key) const {
  if (!options.is_object() || !options.contains("derived")) return nullptr;
  const ordered_json& derived = options["derived"];
  return derived.is_object() && derived.contains(key) ? &derived[key] : nullptr;
}

std::string RunFiles::derived(const std::string& key) const {
  const ordered_json* value = find_derived(key);
  return value ? text_of(*value) : "";
}

RunFiles read_run(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    fail_as(ErrorCode::kFile, folder, error ? ": " + error.message() : std::string(" is no folder"),
            "; give the folder of a run, the --out of fit");
  }
  if (!fs::exists(folder + "/options.json", error) && !fs::exists(folder + "/metrics.csv", error)) {
    fail_as(ErrorCode::kFile, folder, " holds no run: it has neither options.json nor metrics.csv");
  }
  fs::path path = fs::absolute(folder, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  RunFiles run{path.filename().string(), MetricsTable(folder + "/metrics.csv"), {}, 0, {}, {}, {}, false, {}};
  refresh(folder, &run);
  return run;
}

void refresh(const std::string& folder, RunFiles* run) {
  run->notes.clear();
  run->running = is_running(folder);  // before the files are read, so that nothing that it wrote is missed
  run->steps.update();
  if (run->steps.damaged() > 0) {
    run->notes.push_back(count_of(run->steps.damaged(), "line") + " of metrics.csv cannot be read and are left out.");
  }
  if (run->steps.rows() == 0) run->notes.push_back("No step has been recorded yet.");
  run->options = read_object(folder + "/options.json", &run->notes);
  run->evaluations.clear();
  run->best_step = 0;
  read_evaluations(folder + "/epochs.jsonl", run);
  run->best = read_object(concat(folder, "/", kBestEvaluation), &run->notes);
  const ordered_json profile = read_object(folder + "/profile.json", &run->notes);
  const bool has_nodes = profile.is_object() && profile.contains("nodes") && profile["nodes"].is_array();
  run->nodes = has_nodes ? profile["nodes"] : ordered_json();
}

}  // namespace onnx_train
