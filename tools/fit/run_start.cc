#include "tools/fit/run_start.h"

#include <filesystem>
#include <set>

#include "onnx_passes/io/base_files.h"
#include "onnx_passes/io/file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/loading/source.h"
#include "runtime/data/texts/packing.h"
#include "runtime/models/adapt.h"
#include "runtime/runs/resume.h"
#include "runtime/support/fingerprint.h"
#include "runtime/support/report_text.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/default_build.h"
#include "tools/config.h"
#include "tools/fit/run_data.h"

namespace onnx_train {

namespace fs = std::filesystem;

namespace {

// The training model that MODEL is, or that is built of it; `built` then says what, unless it is null.
Model load_or_build(const FitArguments& a, std::optional<BuiltForRun>* built) {
  BuildSettings settings = a.build;
  settings.device = a.session.device;
  settings.build.accumulate = settings.build.accumulate || a.trainer.accumulate > 1;
  bool& document_mask = settings.import.adapt.document_mask;
  const bool is_asked_for = document_mask;
  document_mask = document_mask || packs(a.reading.packing);
  if (a.given->count("loss") == 0 && !a.has_recorded_build) settings.build.loss.clear();
  fit_vocabulary(a.reading.tokenizer, &settings.import.adapt);
  DefaultBuild found = load_or_build(
      a.model, settings,
      [&](const Model& forward) {
        return is_stream(a, entry_inputs(forward, Entry::kPredict))
                   ? guess_loss_of_stream(forward, a.data)
                   : guess_loss(forward, a.data, ReadOptions{a.reading, DataRole::kTrain, {}, {}});
      },
      [&](const Model& forward) {
        return load_dataset(a.data, entry_inputs(forward, Entry::kPredict), DataRole::kTrain, {},
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
    if (document_mask && !is_asked_for) options += options.empty() ? "--document-mask" : " --document-mask";
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

// What resuming needs to know of MODEL, which is gone before the run's own model is loaded.
struct GivenModel {
  std::string identity;
  BuiltWith built_with;
  std::optional<TrainingPosition> position;
};

GivenModel look_at(const FitArguments& a) {
  const Model model = load_or_build(a, nullptr);
  return {fingerprint(model), built_with(model), checkpoint_position(model)};
}

}  // namespace

Start start_where_it_stopped(const FitArguments& a, Collectives* collectives) {
  const GivenModel given = look_at(a);
  TopologyOptions ranks = topology_of(a.session);
  ranks.collectives = collectives;
  // What a precision changes is read whole.
  const bool reads_all = a.dtype != "float32";
  also_look_for_base_in(a.model);
  Start start{load_training_model(a.last_checkpoint(), reads_all ? TopologyOptions() : ranks), given.identity, {}, {}};
  start.position = position_of_run(start.model, a.last_checkpoint());
  expect_same_build(built_with(start.model), a.last_checkpoint(), given.built_with, a.model);
  start.identity = identity_on_resume(given.identity, given.position, *start.position);
  return start;
}

void adopt_build(FitArguments* a) {
  const std::string path = a->trainer.folder + "/options.json";
  if (!path_exists(path)) return;
  // Of all options those of `build` alone: the others are in the checkpoint, or may change.
  FitArguments recorded;
  std::set<std::string> given;
  read_config(path, fit_options(&recorded), &given);
  std::vector<CommandOption> own = options_of_forward_run(&a->build), others = options_of_forward_run(&recorded.build);
  for (size_t i = 0; i < own.size(); ++i) {
    const std::string key = key_of(own[i]);
    if (given.count(key) == 0 || a->given->count(key) > 0) continue;
    for (const std::string& value : values_of(others[i])) assign(own[i], value);
  }
  // What --packing asked for, where a run of a forward model is resumed without it.
  bool& document_mask = a->build.import.adapt.document_mask;
  document_mask = document_mask || packs(recorded.reading.packing);
  a->has_recorded_build = given.count("loss") > 0;
}

void adopt_threads(FitArguments* a) {
  if (a->session.threads == 0) a->session.threads = recorded_count(a->trainer.folder, "threads").value_or(0);
}

void adopt_offload(FitArguments* a) {
  if (a->given->count("offload") > 0 || Device::find(a->session.device).uses_host_memory()) return;
  if (recorded_text(a->trainer.folder, "offload") == "optimizer") a->session.offload = "optimizer";
}

void adopt_eval_data(FitArguments* a) {
  if (a->eval_data.empty()) a->eval_data = recorded_text(a->trainer.folder, "eval-data").value_or("");
}

}  // namespace onnx_train
