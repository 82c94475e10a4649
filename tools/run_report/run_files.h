// What a run has left in its folder, as far as it can be read: numbers of steps and evaluations, options, a profile.
// Plain values. The files are not trusted: what is missing or damaged becomes a note.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/run_report/metrics_table.h"
#include "tools/run_report/series.h"

namespace onnx_train {

struct RunFiles {
  std::string name;                           // of the folder
  MetricsTable steps;                         // metrics.csv
  std::map<std::string, Series> evaluations;  // epochs.jsonl: each number by step, "eval_loss"
  double best_step = 0;                       // of the best evaluation in them; 0: none
  nlohmann::ordered_json best;                // evaluation.json, an object: the best evaluation, by class
  nlohmann::ordered_json options;             // options.json, an object
  nlohmann::ordered_json nodes;               // of profile.json, which `bench --profile --json` prints; an array
  bool running = false;
  std::vector<std::string> notes;  // sentences

  // An option's value as text; "" if it has none. `derived` looks at what the run added to the options.
  std::string option(const std::string& key) const;
  std::string derived(const std::string& key) const;
  const nlohmann::ordered_json* find_derived(const std::string& key) const;  // null if there is none
};

// Throws Error if the folder holds no run.
RunFiles read_run(const std::string& folder);

// What the folder holds by now: new rows of metrics.csv are added to those that `run` has, all else is read anew.
void refresh(const std::string& folder, RunFiles* run);

// A number, text, truth value, or list of these as text; "" for all else.
std::string text_of(const nlohmann::ordered_json& value);

}  // namespace onnx_train
