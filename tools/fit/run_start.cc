#include "tools/fit/run_start.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/data/source.h"
#include "runtime/report_text.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/default_build.h"
#include "runtime/training/fingerprint.h"
#include "tools/config.h"

namespace onnx_train {

namespace fs = std::filesystem;

bool finds_run(const FitArguments& a) {
  std::error_code error;
  // A run that failed at its first step has nothing to lose.
  const bool stepped = fs::file_size(a.trainer.folder + "/metrics.jsonl", error) > 0 && !error;
  const bool exists = fs::exists(a.last_checkpoint(), error) && (stepped || a.resume);
  if (exists && !a.resume && !a.overwrite && !a.dry_run) {
    throw UsageError(a.trainer.folder +
                     " holds a run; go on with --resume, start anew with --overwrite, or take another --out");
  }
  return exists && a.resume;
}

namespace {

// The training model that MODEL is, or that is built of it; `built` then says what, unless it is null.
Model load_or_build(const FitArguments& a, std::optional<BuiltForRun>* built) {
  BuildSettings settings = a.build;
  settings.device = a.runtime.device;
  settings.build.accumulate = settings.build.accumulate || a.trainer.accumulate > 1;
  if (a.given->count("loss") == 0 && !a.has_recorded_build) settings.build.loss.clear();
  DefaultBuild found = load_or_build(
      a.model, settings,
      [&](const Model& forward) {
        return guess_loss(forward, a.data, ReadOptions{a.reading, DataRole::kTrain, {}, {}});
      },
      [&](const Model& forward) {
        return load_dataset(a.data, entry_inputs(forward, "predict"), DataRole::kTrain, {},
                            ReadOptions{a.reading, {}, {}, {}});
      });
  if (!found.is_built) {
    const std::string given = given_build_options(a);
    if (given.empty()) return std::move(found.model);
    throw UsageError(concat(a.model, " is a training model, which is built already; leave out ", given,
                            ", or give the forward model; onnx-train build ", a.model, " -o ", a.trainer.folder,
                            "/new.onnx ", given, " builds it anew"));
  }
  const std::string written = a.trainer.folder + "/train.onnx";
  if (std::error_code error; fs::equivalent(a.model, written, error)) {
    throw UsageError(concat(written, " is where the training model goes, and a forward model; take another --out"));
  }
  if (built) {
    std::string options = given_build_options(a);
    if (!found.why.empty()) {
      options = concat("--loss ", shell_quoted(found.loss), options.empty() ? "" : " ", options);
    }
    if (settings.build.accumulate) options += options.empty() ? "--accumulate" : " --accumulate";
    *built = BuiltForRun{found.why, "", options, found.loss, found.sizes};
    if (settings.precision == "auto") (*built)->precision = automatic_precision(settings).why;
  }
  return std::move(found.model);
}

}  // namespace

Model model_of_run(const FitArguments& a) { return load_or_build(a, nullptr); }

Start start_anew(const FitArguments& a) {
  std::optional<BuiltForRun> built;
  Start start{load_or_build(a, &built), "", {}, {}};
  start.built = std::move(built);
  start.identity = fingerprint(start.model);
  start.model = in_precision(std::move(start.model), a.dtype);
  return start;
}

namespace {

constexpr const char* kBuiltWith[] = {"loss", "optimizer", "groups", "layer_decay", "clip_value",
                                      "ema",  "swa",       "mode",   "precision"};

// What resuming needs to know of MODEL, which is gone before the run's own model is loaded.
struct GivenModel {
  std::string identity;
  std::map<std::string, std::string> built_with;
  std::optional<TrainingPosition> position;
};

GivenModel look_at(const FitArguments& a) {
  const Model model = load_or_build(a, nullptr);
  GivenModel given{fingerprint(model), {}, checkpoint_position(model)};
  for (const std::string what : kBuiltWith) given.built_with[what] = model.metadata("onnx_train." + what);
  return given;
}

}  // namespace

Start start_where_it_stopped(const FitArguments& a) {
  const GivenModel given = look_at(a);
  Start start{load_training_model(a.last_checkpoint()), given.identity, {}, {}};
  start.position = checkpoint_position(start.model);
  if (!start.position) fail(a.last_checkpoint(), " does not say where its training stands; it is no checkpoint");
  for (const std::string what : kBuiltWith) {
    const std::string before = start.model.metadata("onnx_train." + what), &now = given.built_with.at(what);
    if (before == now) continue;
    fail("cannot resume: ", a.last_checkpoint(), " was built with ", what, " ", before, ", ", a.model, " with ", now);
  }
  const auto model_of = [](const TrainingPosition& position) {
    const auto found = position.settings.find("model");
    return found == position.settings.end() ? "" : found->second;
  };
  if (given.position && model_of(*given.position) == model_of(*start.position)) {
    start.identity = model_of(*start.position);
  }
  return start;
}

// What is not given stays as the run has it.
void adopt_settings(FitArguments* a, const std::map<std::string, std::string>& settings) {
  for (const CommandOption& option : a->described) {
    const auto saved = settings.find(key_of(option));
    // Of the files, settings hold the identity.
    const bool is_setting = saved != settings.end() && option.value != "FILE" && option.value != "PATH";
    if (!is_setting || saved->second == "none") continue;
    const bool* const automatic = option.target.automatic;  // "auto" is what was found then
    if (a->given->count(saved->first) > 0 && !(automatic && *automatic)) continue;
    try {
      assign(option, saved->second);
    } catch (const UsageError& e) {
      fail("cannot resume: ", a->last_checkpoint(), " is damaged: ", e.what());
    }
  }
}

namespace {

// options.json; an empty object where there is none that can be read.
nlohmann::json options_of_run(const std::string& folder) {
  std::ifstream file(folder + "/options.json");
  auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : nlohmann::json::object();
}

int64_t count_in(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? std::max<int64_t>(found->get<int64_t>(), 0) : 0;
}

}  // namespace

void adopt_build(FitArguments* a) {
  const std::string path = a->trainer.folder + "/options.json";
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return;
  // Of all options those of `build` alone: the others are in the checkpoint, or may change.
  FitArguments recorded;
  std::set<std::string> given;
  read_config(path, fit_options(&recorded), &given);
  std::vector<CommandOption> own = build_options_of(a), others = build_options_of(&recorded);
  for (size_t i = 0; i < own.size(); ++i) {
    const std::string key = key_of(own[i]);
    if (given.count(key) == 0 || a->given->count(key) > 0) continue;
    for (const std::string& value : values_of(others[i])) assign(own[i], value);
  }
  a->has_recorded_build = given.count("loss") > 0;
}

void adopt_threads(FitArguments* a) {
  if (a->runtime.threads == 0) a->runtime.threads = count_in(options_of_run(a->trainer.folder), "threads");
}

void adopt_offload(FitArguments* a) {
  if (a->given->count("offload") > 0 || Device::find(a->runtime.device).uses_host_memory()) return;
  const nlohmann::json json = options_of_run(a->trainer.folder);
  if (json.value("offload", nlohmann::json()) == "optimizer") a->runtime.offload = "optimizer";
}

void adopt_accumulation(FitArguments* a) {
  if (a->given->count("accumulate") > 0) return;
  a->trainer.accumulate = std::max<int64_t>(count_in(options_of_run(a->trainer.folder), "accumulate"), 1);
}

void adopt_eval_data(FitArguments* a) {
  if (!a->eval_data.empty()) return;
  const nlohmann::json json = options_of_run(a->trainer.folder);
  if (const auto found = json.find("eval-data"); found != json.end() && found->is_string())
    a->eval_data = found->get<std::string>();
}

// Where the command says no end, or one in time alone of a schedule that counts steps, the run's own stays.
void adopt_end(FitArguments* a) {
  TrainerOptions& o = a->trainer;
  if (o.epochs > 0 || o.steps > 0) return;
  const bool has_end = o.time_limit > 0 || !a->time_limit.empty();
  if (has_end && !resolve(a->schedule, Schedule().peak).curve.needs_end()) return;
  const nlohmann::json json = options_of_run(o.folder);
  o.epochs = count_in(json, "epochs");
  o.steps = count_in(json, "steps");
  const auto limit = json.find("time-limit");
  const bool counts = o.epochs > 0 || o.steps > 0;  // a limit in time is one of the process that had it
  if (!has_end && !counts && limit != json.end() && limit->is_string()) a->time_limit = limit->get<std::string>();
}

}  // namespace onnx_train
