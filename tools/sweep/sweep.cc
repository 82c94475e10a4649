// `sweep`: one `fit` after the other, with values of some options varied.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "platform/signals.h"
#include "runtime/support/report_text.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/metric_sums.h"
#include "tools/arguments.h"
#include "tools/fit/fit_arguments.h"
#include "tools/interrupt.h"
#include "tools/report/output.h"
#include "tools/run_report/last_step.h"
#include "tools/run_report/report_tables.h"
#include "tools/runtime_options.h"
#include "tools/sweep/run_process.h"
#include "tools/sweep/run_record.h"
#include "tools/sweep/variation.h"

namespace onnx_train {
namespace {

struct SweepArguments {
  FitArguments fit;  // what all runs share
  std::vector<CommandOption> shared;
  std::vector<std::string> vary;
  std::string folder = "sweep", links;
  int64_t random = 0, random_seed = 0;
  bool overwrite = false, json = false, dry_run = false;
};

enum class RunState { kWaiting, kEnded, kFailed, kInterrupted, kElsewhere };

struct SweepRun {
  VariedOptions varied;
  std::string name, folder;
  std::vector<std::string> arguments;  // of fit, but for the folder
  RunState state = RunState::kWaiting;
  std::string failure;
  std::string metric;  // "eval_loss"; "train_loss" without evaluation data
  double best = std::nan(""), step = 0, seconds = 0;
};

// ---- The runs

// Those of fit, but for what a sweep decides itself. What is required of a run may be varied.
std::vector<CommandOption> shared_options(FitArguments* fit) {
  std::vector<CommandOption> options;
  for (CommandOption& option : fit_options(fit)) {
    const std::string key = key_of(option);
    if (key == "out" || key == "resume" || key == "overwrite" || key == "json" || key == "dry-run" || key == "tui")
      continue;
    option.required = false;
    options.push_back(std::move(option));
  }
  return options;
}

std::vector<std::string> as_arguments(const CommandOption& option) {
  if (is_flag(option)) {
    return value_of(option) == "true" ? std::vector<std::string>{"--" + key_of(option)} : std::vector<std::string>();
  }
  std::vector<std::string> values;
  if (const auto* list = std::get_if<std::vector<std::string>*>(&option.target.to)) {
    values = **list;
  } else if (const auto value = value_of(option)) {
    values = {*value};
  }
  for (std::string& value : values) value = concat("--", key_of(option), "=", value);
  return values;
}

// The arguments of the run, which are checked as `fit` does before it reads a file.
std::vector<std::string> arguments_of(const SweepArguments& a, const SweepRun& run) {
  std::vector<std::string> arguments, positional;
  for (const CommandOption& option : a.shared) {
    const std::string key = key_of(option);
    const auto varied =
        std::find_if(run.varied.begin(), run.varied.end(), [&](const auto& v) { return v.first == key; });
    const bool is_varied = varied != run.varied.end();
    if (key == "config" || (!is_varied && a.fit.given->count(key) == 0)) continue;
    if (is_positional(option)) {
      positional.push_back(is_varied ? varied->second : *value_of(option));
    } else if (!is_varied) {
      for (std::string& text : as_arguments(option)) arguments.push_back(std::move(text));
    } else if (is_flag(option)) {
      if (varied->second != "true" && varied->second != "false") {
        throw UsageError(concat("--vary: ", key, " is true or false, not ", varied->second));
      }
      if (varied->second == "true") arguments.push_back("--" + key);
    } else {
      arguments.push_back(concat("--", key, "=", varied->second));
    }
  }
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), positional.begin(), positional.end());
  FitArguments fit;
  fit.described = fit_options(&fit);
  try {
    read_arguments({"fit", "", "", fit.described, {}, fit.given}, arguments);
    check_usage(&fit);
  } catch (const UsageError& e) {
    throw UsageError(run.name.empty() ? e.what() : concat(run.name, ": ", e.what()), e.code());
  }
  return arguments;
}

std::vector<SweepRun> plan_runs(const SweepArguments& a) {
  std::vector<Variation> variations;
  std::set<std::string> keys;
  std::vector<CommandOption> options = a.shared;
  std::erase_if(options, [](const CommandOption& option) { return key_of(option) == "config"; });
  for (const std::string& text : a.vary) {
    variations.push_back(parse_variation(text, options));
    if (!keys.insert(variations.back().key).second) {
      throw UsageError(concat("--vary: ", variations.back().key, " is varied twice"));
    }
  }
  const std::vector<VariedOptions> varied =
      a.random > 0 ? draws(variations, a.random, static_cast<uint64_t>(a.random_seed)) : grid(variations);
  std::vector<SweepRun> runs;
  for (const VariedOptions& options_of_run : varied) {
    SweepRun run;
    run.varied = options_of_run;
    run.name = run_name(options_of_run);
    run.folder = concat(a.folder, "/", run.name);
    run.arguments = arguments_of(a, run);
    runs.push_back(std::move(run));
  }
  return runs;
}

// Runs that have ended are compared with those to come: they must have been trained alike.
void check_records(const SweepArguments& a, const std::vector<SweepRun>& runs) {
  for (const SweepRun& run : runs) {
    const auto record = read_run_record(run.folder);
    if (a.overwrite || !record || !record->failure.empty() || is_of(*record, run.arguments)) continue;
    const auto lacks = [](const std::vector<std::string>& list, const std::string& text) {
      return std::find(list.begin(), list.end(), text) == list.end();
    };
    std::string before, now;
    for (const std::string& text : record->arguments)
      before += lacks(run.arguments, text) ? " " + shell_quoted(text) : "";
    for (const std::string& text : run.arguments) now += lacks(record->arguments, text) ? " " + shell_quoted(text) : "";
    throw UsageError(concat(run.folder, " was trained with", before.empty() ? " nothing" : before,
                            " where this sweep has", now.empty() ? " nothing" : now,
                            "; take another --out, or --overwrite to train all anew"));
  }
}

// ---- One run

// What the files of the run say of its best evaluation.
void read_result(const std::string& best, SweepRun* run) {
  const RunFiles files = read_run(run->folder);
  if (const Series time = elapsed(files); time.size() > 0) run->seconds = time.y.back();
  const std::string metric = files.evaluations.count("eval_" + best) > 0 ? "eval_" + best : "train_loss";
  const auto evaluated = files.evaluations.find(metric);
  if (evaluated == files.evaluations.end()) return;
  run->metric = metric;
  const Series& series = evaluated->second;
  for (size_t i = 0; i < series.size(); ++i) {
    if (series.x[i] == files.best_step) run->best = series.y[i], run->step = series.x[i];
  }
}

bool more_of_best_is_better(const SweepArguments& a, const SweepRun& run) {
  const std::string& best = a.fit.trainer.best;
  return best != "loss" && more_is_better(load_training_model(run.folder + "/last.onnx"), best);
}

std::string value_text(const SweepRun& run) {
  return metric_text(run.metric.substr(run.metric.find('_') + 1), run.best);
}

std::string spaced(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

std::string result_text(const SweepRun& run) {
  switch (run.state) {
    case RunState::kWaiting: return "not started";
    case RunState::kFailed: return "failed: " + run.failure;
    case RunState::kInterrupted: return "interrupted";
    case RunState::kElsewhere: return "another process trains it";
    case RunState::kEnded: break;
  }
  if (run.metric.empty()) return "ended without an evaluation";
  return concat(spaced(run.metric), " ", value_text(run), " at step ", static_cast<int64_t>(run.step));
}

std::string failure_of(const platform::ProcessEnd& end, const RunLog& log) {
  if (end.signal != 0) return concat("ended by signal ", end.signal, " (", platform::describe_signal(end.signal), ")");
  constexpr const char* kOurs = "onnx-train: ";
  const std::string line = log.last_line();
  return line.starts_with(kOurs) ? line.substr(std::strlen(kOurs)) : concat("exit status ", end.status);
}

// Trains the run unless it has ended. Returns whether it did anything.
bool train(const SweepArguments& a, const std::string& title, SweepRun* run) {
  const RunLog log(run->folder);
  if (!log.is_locked()) {
    run->state = RunState::kElsewhere;
    return false;
  }
  const auto record = read_run_record(run->folder);
  if (!a.overwrite && record && record->failure.empty() && is_of(*record, run->arguments)) {
    run->state = RunState::kEnded;
    return false;
  }
  remove_run_record(run->folder);
  std::vector<std::string> arguments = {"fit", concat("--out=", run->folder), a.overwrite ? "--overwrite" : "--resume"};
  if (!a.links.empty()) arguments.push_back("--allow-links=" + a.links);
  arguments.insert(arguments.end(), run->arguments.begin(), run->arguments.end());
  std::chrono::steady_clock::time_point shown{};
  const platform::ProcessEnd end = run_process(arguments, log, [&] {
    const auto now = std::chrono::steady_clock::now();
    if (a.json || !is_terminal() || now - shown < std::chrono::seconds(1)) return;
    shown = now;
    std::string line = title;
    try {
      const size_t room = text_width() - 1, used = text_columns(line) + 2;
      if (room > used) line += "  " + last_step_line(read_run(run->folder), room - used);
    } catch (const Error&) {  // it has no files yet
    }
    show_status(shorten(line, text_width() - 1));
  });
  if (end.signal == 0 && end.status == kInterruptedStatus) {
    run->state = RunState::kInterrupted;
    return true;
  }
  run->state = end.signal == 0 && end.status == 0 ? RunState::kEnded : RunState::kFailed;
  if (run->state == RunState::kFailed) run->failure = failure_of(end, log);
  write_run_record(run->folder, {run->arguments, run->failure});
  return true;
}

// ---- All runs

std::string json_of(const SweepRun& run) {
  nlohmann::ordered_json json = {{"run", run.folder}};
  for (const auto& [key, value] : run.varied) json["options"][key] = value;
  if (run.state == RunState::kFailed) json["failure"] = run.failure;
  if (run.state == RunState::kInterrupted || run.state == RunState::kElsewhere || run.state == RunState::kWaiting) {
    json["state"] = result_text(run);
  }
  if (!run.metric.empty()) json[run.metric] = run.best, json["step"] = static_cast<int64_t>(run.step);
  json["seconds"] = run.seconds;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// The best first; those without a number last, in their order.
void sort_by_result(bool more_is_better, std::vector<SweepRun>* runs) {
  std::stable_sort(runs->begin(), runs->end(), [&](const SweepRun& a, const SweepRun& b) {
    if (std::isnan(a.best) || std::isnan(b.best)) return !std::isnan(a.best) && std::isnan(b.best);
    return more_is_better ? a.best > b.best : a.best < b.best;
  });
}

void print_table(const SweepArguments& a, const std::vector<SweepRun>& runs) {
  const auto ended = std::find_if(runs.begin(), runs.end(), [](const SweepRun& run) { return !run.metric.empty(); });
  const size_t columns = runs[0].varied.size();
  TextTable table(std::string(columns, 'l') + "rrrw");
  std::vector<std::string> head;
  for (const auto& [key, value] : runs[0].varied) head.push_back(key);
  head.insert(head.end(), {ended == runs.end() ? "" : spaced(ended->metric), "step", "time in steps", ""});
  table.add(head);
  for (const SweepRun& run : runs) {
    std::vector<std::string> row;
    for (const auto& [key, value] : run.varied) row.push_back(value);
    const bool known = !run.metric.empty() && !std::isnan(run.best);
    row.push_back(known ? value_text(run) : "");
    row.push_back(known ? std::to_string(static_cast<int64_t>(run.step)) : "");
    row.push_back(run.seconds > 0 ? format_duration(run.seconds) : "");
    row.push_back(run.state == RunState::kEnded ? "" : run.state == RunState::kFailed ? "failed" : result_text(run));
    table.add(row);
  }
  print("\n" + table.text(0, text_width()));
  const std::string report =
      concat("onnx-train report ", shell_quoted(a.folder), "/* -o ", shell_quoted(a.folder + ".html"));
  print(concat(std::isnan(runs[0].best) ? "" : concat("\nbest: ", runs[0].folder, "/best.onnx"),
               "\nall of them in one page:\n", wrap_command(report, table_width(), 2), "\n"));
}

int sweep(SweepArguments* a) {
  std::vector<SweepRun> runs = plan_runs(*a);
  check_records(*a, runs);
  if (a->random > static_cast<int64_t>(runs.size())) {
    print_notes({concat("there are no more than ", runs.size(), " different runs of these values")});
  }
  if (a->dry_run) {
    for (const SweepRun& run : runs) print(a->json ? json_of(run) : run.folder + "\n");
    return 0;
  }
  const std::atomic<bool>& interrupted = catch_interrupts();
  if (!a->json) print(concat("sweep of ", runs.size(), runs.size() == 1 ? " run in " : " runs in ", a->folder, "\n"));
  bool more_is_better = false, failed = false, left = false;
  for (size_t i = 0; i < runs.size() && !interrupted; ++i) {
    SweepRun& run = runs[i];
    const std::string title = concat(i + 1, "/", runs.size(), "  ", run.name);
    const bool trained = train(*a, title, &run);
    if (run.state == RunState::kEnded) {
      more_is_better = more_of_best_is_better(*a, run);
      read_result(a->fit.trainer.best, &run);
    }
    failed = failed || run.state == RunState::kFailed;
    const std::string before = run.state == RunState::kEnded && !trained ? "has ended before: " : "";
    if (!a->json) print(wrap(concat(title, "  ", before, result_text(run)), text_width(), 0, 2) + "\n");
  }
  for (const SweepRun& run : runs) {
    left = left || run.state == RunState::kWaiting || run.state == RunState::kInterrupted;
  }
  sort_by_result(more_is_better, &runs);
  if (a->json) {
    for (const SweepRun& run : runs) print(json_of(run));
  } else {
    print_table(*a, runs);
    if (left) print("interrupted; the same command goes on\n");
  }
  return interrupted ? kInterruptedStatus : failed || left ? 1 : 0;
}

}  // namespace

Subcommand sweep_command() {
  auto a = std::make_shared<SweepArguments>();
  a->shared = shared_options(&a->fit);
  OptionTarget vary(&a->vary);
  vary.whole = true;
  std::vector<CommandOption> options = {
      {"--vary", vary,
       "an option of fit and its values, lr=1e-4,1e-3; or, with --random, lr=uniform(LOW, HIGH) or "
       "lr=log_uniform(LOW, HIGH). Several give every combination",
       "NAME=VALUES", true},
      {"--random", {&a->random, kCount}, "N runs with values drawn at random, in the place of every combination", "N"},
      {"--random-seed", &a->random_seed, "of --random; the first runs of a larger N are those of a smaller one [0]",
       "N"},
      {"--out", &a->folder, "the sweep's folder, in which each run has one of its own [sweep]", "DIR"},
      {"--overwrite", &a->overwrite, "train all runs anew, also those that have ended"},
      {"--json", &a->json, "one JSON object a run, the best first, instead of text"},
      {"--dry-run", &a->dry_run, "check the options of all runs, name their folders, and write nothing"},
      links_option(&a->links)};
  // MODEL comes first.
  options.insert(options.begin(), a->shared.begin(), a->shared.begin() + 1);
  options.insert(options.end(), a->shared.begin() + 1, a->shared.end());
  return {"sweep",
          "Train several runs of fit with options varied, a grid or at random, and rank them",
          "  onnx-train sweep train.onnx --data train.npz --eval-data test.npz --epochs 5 --vary lr=1e-4,3e-4,1e-3 "
          "--vary batch_size=32,64 --out sweep\n"
          "  onnx-train sweep --config fit.yaml --random 20 --vary 'lr=log_uniform(1e-5, 1e-2)' --best accuracy\n"
          "  onnx-train report sweep/* -o sweep.html\n"
          "A sweep that was interrupted goes on when the same command is given again: runs that have ended are not "
          "repeated, those that failed are tried again. The same command in a second terminal takes a share of the "
          "runs.",
          options,
          [a] { return sweep(a.get()); },
          a->fit.given};
}

}  // namespace onnx_train
