#include "tools/fit/run_data.h"

#include "onnx_passes/ir/error.h"
#include "runtime/data/files/readers.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/images/files.h"
#include "runtime/data/selection.h"
#include "runtime/support/report_text.h"
#include "runtime/training/trainer.h"

namespace onnx_train {

namespace {

constexpr int64_t kUsualBuffer = 1000;  // samples

// Null for data that are read before the first step.
std::shared_ptr<const TextStream> stream_of(const FitArguments& a, const Session& session, const ReadOptions& options) {
  const std::vector<InputSpec> inputs = entry_inputs(session.model(), training_entry(session));
  if (!is_stream(a, inputs)) return nullptr;
  return std::make_shared<const TextStream>(
      streamed_files(a.data, DataRole::kTrain), session.model(), training_entry(session),
      reading_of(session.model(), training_entry(session), inputs, options),
      a.trainer.samples.shuffle_buffer > 0 ? a.trainer.samples.shuffle_buffer : kUsualBuffer);
}

}  // namespace

bool is_stream(const FitArguments& a, const std::vector<InputSpec>& inputs) {
  return a.trainer.samples.stream || (a.data == "-" && token_inputs(inputs).tokens && !holds_archives());
}

TrainingData load_data(const FitArguments& a, Session* session, DataNotes* notes) {
  ReadOptions options{a.reading, DataRole::kTrain, {}, {}};
  const std::shared_ptr<const TextStream> stream = stream_of(a, *session, options);
  if (stream) notes->insert(notes->end(), stream->notes().begin(), stream->notes().end());
  const Dataset all =
      stream ? stream->first() : load_dataset(a.data, session->model(), training_entry(*session), options, notes);
  session->set_metadata(kPreprocess, all.preprocess().json());
  for (const auto& [key, value] : all.metadata()) session->set_metadata(key, value);
  // The model says by now how its data are preprocessed.
  options.scales.clear();
  options.preprocess.clear();
  options.augment.clear();
  DataNotes hints;
  const bool evaluates = !a.eval_data.empty() || splits(a.trainer.samples);
  if (const std::string tests = evaluates ? "" : test_part(a.data); !tests.empty()) {
    notes->push_back(concat(tests, " is there, and not read: --eval-data ", shell_quoted(a.data), " evaluates on it"));
  }
  if (a.trainer.early_stop > 0 && !evaluates)
    notes->push_back(
        "--early-stop follows the training loss, as there are no data to evaluate on: --eval-data, --val-split");
  TrainingData data{{a.data, all, {}, stream}, {}};
  if (!a.eval_data.empty()) {
    options.role = DataRole::kEvaluate;
    data.evaluation =
        RunData{a.eval_data, load_dataset(a.eval_data, session->model(), Entry::kEvaluate, options, &hints)};
    if (!a.reading.says_how()) notes->insert(notes->end(), hints.begin(), hints.end());
  } else if (splits(a.trainer.samples)) {
    data.evaluation = RunData{a.data, load_dataset(a.data, session->model(), Entry::kEvaluate, options, &hints)};
  }
  data.select(a.trainer.samples, a.trainer.seed, a.batch_size);
  return data;
}

}  // namespace onnx_train
