#include "tools/fit/run_start.h"

#include <filesystem>

#include "onnx_passes/ir/error.h"
#include "runtime/data/source.h"
#include "runtime/report_text.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/default_build.h"
#include "runtime/training/fingerprint.h"

namespace onnx_train {

namespace fs = std::filesystem;

bool finds_run(const FitArguments& a) {
  std::error_code error;
  const bool exists = fs::exists(a.last_checkpoint(), error);
  if (exists && !a.resume && !a.overwrite) {
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
  if (a.given->count("loss") == 0) settings.build.loss.clear();
  DefaultBuild found = load_or_build(a.model, settings, [&](const Model& forward) {
    return guess_loss(forward, a.data, ReadOptions{a.reading, DataRole::kTrain, {}, {}});
  });
  if (!found.is_built) {
    const std::string given = given_build_options(a);
    if (given.empty()) return std::move(found.training);
    throw UsageError(concat(a.model, " is a training model, which is built already; leave out ", given,
                            ", or give the forward model"));
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
    *built = BuiltForRun{found.why, "", options};
    if (settings.precision == "auto") (*built)->precision = automatic_precision(settings).why;
  }
  return std::move(found.training);
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

constexpr const char* kBuiltWith[] = {"loss",       "optimizer", "groups", "layer_decay",
                                      "clip_value", "ema",       "mode",   "precision"};

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

}  // namespace onnx_train
