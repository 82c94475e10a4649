#include "tools/fit/fit_arguments.h"

#include <algorithm>
#include <filesystem>

#include "kernels/device.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/metrics/metrics.h"
#include "runtime/data/images/augment.h"
#include "runtime/data/selection.h"
#include "runtime/support/report_text.h"
#include "tools/config.h"
#include "tools/run_report/report_page.h"

namespace onnx_train {

void check_usage(FitArguments* a) {
  TrainerOptions& o = a->trainer;
  complete(a, Schedule().peak);
  if (a->tui) expect_reports("--tui");
  if (a->tensorboard) expect_reports("--tensorboard");
  if (a->tui && a->json) throw UsageError("--tui is for people, --json for programs; leave out one of them");
  check_samples(o.samples, !a->eval_data.empty());
  o.recorded = fixed_settings(data_options(&a->reading));
  for (const Setting& setting : fixed_settings(sample_options(&o.samples))) o.recorded.push_back(setting);
  for (const Setting& setting : fixed_settings({tta_option(&a->session)})) o.recorded.push_back(setting);
}

namespace {

// What the command adds to the options of a training: processes, and what it shows and writes.
std::vector<CommandOption> options_of(FitArguments* a) {
  const std::vector<CommandOption> processes = {
      {"--devices",
       &a->devices,
       "train with one process for each of these, such as cpu,cpu; or start the processes with torchrun, mpirun or "
       "srun (docs/distributed.md)",
       "NAME,...",
       false,
       {},
       Device::names},
      {"--elastic", &a->elastic,
       "with --devices: where a process is killed, go on with the others from the last checkpoint"},
      {"--transport",
       &a->transport,
       "what carries what several processes exchange; auto: mpi where mpirun has started them and there is a "
       "module for its MPI, else gloo, which was tcp [auto]",
       "NAME",
       false,
       {"auto", "gloo", "mpi", "tcp"}}};
  const std::vector<CommandOption> shown = {
      {"--dtype",
       &a->dtype,
       "float64 trains in double precision, to verify with [float32]",
       "TYPE",
       false,
       {"float32", "float64"}},
      {"--json", &a->json, "one JSON object a step instead of text"},
      {"--tui", &a->tui, "show curves, rates and memory on the whole terminal while it trains; q stops as Ctrl-C does"},
      {"--tensorboard", &a->tensorboard, "write the metrics to RUN/tensorboard, too, for TensorBoard"},
      {"--dry-run", &a->dry_run,
       "check options, model, data and memory, time a step, say how long the training takes, and write nothing"},
      config_option(&a->config)};
  std::vector<CommandOption> options = taken_by(TakenBy::kCommand, training_options(a));
  options = inserted_before("data", options,
                            {{"MODEL", &a->model,
                              "the training model, from onnx-train build; or a forward model, which is built with "
                              "defaults first",
                              "FILE", true}});
  options =
      inserted_after("accumulate", options, joined(processes, taken_by(TakenBy::kCommand, rank_options(&a->session))));
  options = inserted_after("augment", options, {tta_option(&a->session)});
  return with_session_options(joined(options, shown), &a->session, &a->reading, &a->trainer.samples);
}

}  // namespace

std::vector<CommandOption> fit_options(FitArguments* a) {
  return inserted_before("out", options_of(a), options_of_forward_run(&a->build));
}

std::vector<CommandOption> recorded_options(const FitArguments& a, bool is_built) {
  std::vector<CommandOption> recorded = a.described;
  if (is_built || a.has_recorded_build) return recorded;
  BuildSettings settings;
  for (const CommandOption& option : options_of_forward_run(&settings)) {
    const std::string key = key_of(option);
    if (a.given->count(key) == 0) std::erase_if(recorded, [&](const CommandOption& o) { return key_of(o) == key; });
  }
  return recorded;
}

std::string given_build_options(const FitArguments& a) {
  BuildSettings settings = a.build;
  std::string text;
  for (const CommandOption& option : options_of_forward_run(&settings)) {
    if (a.given->count(key_of(option)) == 0) continue;
    for (const std::string& value : values_of(option))
      text += concat(text.empty() ? "" : " ", "--", key_of(option), " ", shell_quoted(value));
  }
  return text;
}

}  // namespace onnx_train
