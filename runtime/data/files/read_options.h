// How a path of data is read. Plain values; any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/data/data_arrays.h"
#include "runtime/data/data_options.h"
#include "runtime/data/dataset.h"
#include "runtime/data/images/damaged.h"
#include "runtime/data/images/files.h"

namespace onnx_train {

enum class DataRole { kTrain, kEvaluate };  // which files of a folder that holds both: for training, for tests

// As the user says, for what, and what the model knows.
struct ReadOptions : DataOptions {
  std::optional<DataRole> role;                 // as the entry point says
  std::optional<int64_t> ignored_label;         // the label that the loss ignores
  std::map<std::string, std::string> metadata;  // of the model, from earlier data: Dataset::metadata
  // How many tokens the model tells apart in an input; 0 if that is not known. Takes as long as a flattening.
  std::function<int64_t(const std::string&)> vocabulary = {};
  // Whether a float mask of the network is a factor, 1 for what is read; else it is added to scores.
  std::function<bool(const std::string&)> is_factor = {};
  // For a prediction from texts: whether the network gives scores of all tokens of an input for each token of it, as a
  // language model does. Else each text is a sample. Takes as long.
  std::function<bool(const std::string&)> writes_tokens = {};
  // Copies share what they find, so that no picture is checked twice.
  std::shared_ptr<PictureFaults> faults = std::make_shared<PictureFaults>();
};

inline bool is_for_training(const ReadOptions& options) {
  return options.role.value_or(DataRole::kTrain) == DataRole::kTrain;
}

}  // namespace onnx_train
