#include "tools/fit/run_data.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"
#include "runtime/data/data_check.h"
#include "runtime/data/images/files.h"
#include "runtime/report_text.h"
#include "runtime/training/trainer.h"

namespace onnx_train {

SelectedData load_data(const FitArguments& a, Session* session, DataNotes* notes) {
  ReadOptions options{a.reading, DataRole::kTrain, {}, {}};
  const Dataset all = load_dataset(a.data, session->model(), training_entry(*session), options, notes);
  session->set_metadata(kPreprocess, all.preprocess().json());
  for (const auto& [key, value] : all.metadata()) session->set_metadata(key, value);
  // The model says by now how its data are preprocessed.
  options.scales.clear();
  options.preprocess.clear();
  options.augment.clear();
  std::optional<Dataset> evaluation;
  DataNotes hints;
  const bool evaluates = !a.eval_data.empty() || splits(a.trainer.samples);
  if (const std::string tests = evaluates ? "" : test_part(a.data); !tests.empty()) {
    notes->push_back(concat(tests, " is there, and not read: --eval-data ", shell_quoted(a.data), " evaluates on it"));
  }
  if (a.trainer.early_stop > 0 && !evaluates)
    notes->push_back(
        "--early-stop follows the training loss, as there are no data to evaluate on: --eval-data, --val-split");
  if (!a.eval_data.empty()) {
    options.role = DataRole::kEvaluate;
    evaluation.emplace(load_dataset(a.eval_data, session->model(), "evaluate", options, &hints));
    if (!a.reading.says_how()) notes->insert(notes->end(), hints.begin(), hints.end());
  } else if (splits(a.trainer.samples)) {
    evaluation.emplace(load_dataset(a.data, session->model(), "evaluate", options, &hints));
  }
  SelectedData selected =
      select_samples(all, evaluation ? &*evaluation : nullptr, a.trainer.samples, a.trainer.seed, a.batch_size);
  if (!a.eval_data.empty()) selected.evaluation = std::move(evaluation);
  return selected;
}

namespace {

void check(const FitArguments& a, const Dataset& data, const std::string& path, const std::string& entry,
           const Session& session, std::vector<std::string>* checked) {
  if (a.no_data_check) return;
  const std::string& identity = data.fingerprint();
  if (std::count(checked->begin(), checked->end(), identity) > 0) return;
  const std::string fault = DataCheck(&data, session.model(), entry).refusal("--no-data-check");
  if (!fault.empty()) fail(path, ": ", fault);
  checked->push_back(identity);
}

}  // namespace

void check_data(const FitArguments& a, const SelectedData& data, const Session& session,
                std::vector<std::string>* checked) {
  check(a, data.training, a.data, training_entry(session), session, checked);
  if (!data.evaluation) return;
  check(a, *data.evaluation, a.eval_data.empty() ? a.data : a.eval_data, "evaluate", session, checked);
}

}  // namespace onnx_train
