// The data of a training: samples of files and arrays, or batches that a program makes. One thread at a time; functions
// throw Error that names the data, and UsageError for options that do not go together.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/data/loading/batch_source.h"
#include "runtime/data/loading/text_stream.h"
#include "runtime/session/session.h"
#include "runtime/training/trainer.h"

namespace onnx_train {

struct RunData {
  std::string name;                                            // in messages: the path of files, or "data"
  std::optional<Dataset> dataset;                              // none where a program makes batches
  std::function<std::unique_ptr<BatchSource>()> batches = {};  // of a program
  std::shared_ptr<const TextStream> stream = {};               // of texts, whose first samples are the dataset

  // Sources of batches, which read this and must not outlive it.
  std::unique_ptr<BatchSource> for_training(const Session& session, const TrainerOptions& options) const;
  std::unique_ptr<BatchSource> for_evaluation(const Session& session, int64_t batch_size) const;

  // Throws Error that names the first element that an entry point of the model cannot use. Data whose fingerprint is
  // among `checked` are not read again; those that are read are added.
  void check(const Session& session, const EntryName& entry, std::vector<std::string>* checked) const;
};

struct TrainingData {
  RunData training;
  std::optional<RunData> evaluation;

  // Leaves the samples that the options choose. Where they split the data, `evaluation` has the same files before, and
  // afterwards the samples that are not trained on. `batch_size`: if it is known.
  void select(const SampleOptions& samples, uint64_t seed, std::optional<int64_t> batch_size);
};

}  // namespace onnx_train
