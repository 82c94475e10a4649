#include "runtime/runs/resume.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/runs/run_folder.h"

namespace onnx_train {

bool finds_run(const FitSettings& settings, bool writes) {
  const std::string& folder = settings.trainer.folder;
  if (folder.empty()) return false;
  // A run that failed at its first step has nothing to lose.
  const std::string steps = folder + "/metrics.jsonl";
  const bool stepped = path_exists(steps) && std::filesystem::file_size(steps) > 0;
  const bool exists = path_exists(settings.last_checkpoint()) && (stepped || settings.resume);
  if (exists && !settings.resume && !settings.overwrite && writes) {
    throw UsageError(folder + " holds a run; go on with --resume, start anew with --overwrite, or take another --out",
                     ErrorCode::kRunExists);
  }
  return exists && settings.resume;
}

TrainingPosition position_of_run(const Model& checkpoint, const std::string& path) {
  std::optional<TrainingPosition> position = checkpoint_position(checkpoint);
  if (!position) fail(path, " does not say where its training stands; it is no checkpoint");
  return *std::move(position);
}

BuiltWith built_with(const Model& model) {
  BuiltWith values;
  for (const std::string what :
       {"loss", "optimizer", "groups", "layer_decay", "clip_value", "ema", "swa", "mode", "precision"}) {
    values[what] = model.metadata("onnx_train." + what);
  }
  return values;
}

void expect_same_build(const BuiltWith& checkpoint, const std::string& path, const BuiltWith& now,
                       const std::string& given) {
  const auto shown = [](const std::string& value) { return value.empty() ? "none" : value; };
  for (const auto& [what, before] : checkpoint) {
    const std::string& after = now.at(what);
    if (before == after) continue;
    fail_as(ErrorCode::kCannotResume, "cannot resume: ", path, " was built with ", what, " ", shown(before), ", ",
            given, " with ", shown(after));
  }
}

std::string identity_on_resume(const std::string& identity, const std::optional<TrainingPosition>& given,
                               const TrainingPosition& run) {
  const auto model_of = [](const TrainingPosition& position) {
    const auto found = position.settings.find("model");
    return found == position.settings.end() ? "" : found->second;
  };
  return given && model_of(*given) == model_of(run) ? model_of(run) : identity;
}

void adopt_settings(const std::vector<CommandOption>& options, const TrainingPosition& run, FitSettings* settings) {
  for (const CommandOption& option : options) {
    const auto saved = run.settings.find(key_of(option));
    // Of the files, settings hold the identity.
    const bool is_setting = saved != run.settings.end() && option.value != "FILE" && option.value != "PATH";
    if (!is_setting || saved->second == "none") continue;
    const bool* const automatic = option.target.automatic;  // "auto" is what was found then
    if (settings->given->count(saved->first) > 0 && !(automatic && *automatic)) continue;
    try {
      assign(option, saved->second);
    } catch (const UsageError& e) {
      fail("cannot resume: ", settings->last_checkpoint(), " is damaged: ", e.what());
    }
  }
  std::string& base = settings->trainer.checkpoint_base.when;
  if (settings->given->count("checkpoint-base") == 0)
    base = recorded_text(settings->trainer.folder, "checkpoint-base").value_or(base);
}

std::optional<std::string> recorded_text(const std::string& folder, const std::string& name) {
  const nlohmann::json json = options_of_run(folder);
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? std::optional(found->get<std::string>()) : std::nullopt;
}

std::optional<int64_t> recorded_count(const std::string& folder, const std::string& name) {
  const nlohmann::json json = options_of_run(folder);
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number_integer() || found->get<int64_t>() < 1) return std::nullopt;
  return found->get<int64_t>();
}

void adopt_end(FitSettings* settings) {
  TrainerOptions& o = settings->trainer;
  if (o.epochs > 0 || o.steps > 0) return;
  const bool has_end = !settings->time_limit.empty();
  if (has_end && !resolve(settings->schedule, Schedule().peak).curve.needs_end()) return;
  o.epochs = recorded_count(o.folder, "epochs").value_or(0);
  o.steps = recorded_count(o.folder, "steps").value_or(0);
  const bool counts = o.epochs > 0 || o.steps > 0;  // a limit in time is one of the process that had it
  if (!has_end && !counts) settings->time_limit = recorded_text(o.folder, "time-limit").value_or("");
}

void adopt_accumulation(FitSettings* settings) {
  if (settings->given->count("accumulate") > 0) return;
  settings->trainer.accumulate = recorded_count(settings->trainer.folder, "accumulate").value_or(1);
}

}  // namespace onnx_train
