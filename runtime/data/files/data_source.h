// What a file, or a folder, of data gives: arrays by name, rows of them, or pictures. The caller owns a source.
// Functions may run on any thread, and throw Error that names the file.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/ir/tensor.h"
#include "runtime/data/data_options.h"
#include "runtime/data/dataset.h"
#include "runtime/data/images/damaged.h"
#include "runtime/data/images/files.h"

namespace onnx_train {

class DataSource {
 public:
  virtual ~DataSource() = default;
  virtual std::vector<std::string> names() const = 0;
  virtual bool contains(const std::string& name) const = 0;
  virtual Tensor read(const std::string& name) const = 0;  // throws Error when there is no such array
  // The rows of an array that is not to be read whole; null for others.
  virtual std::shared_ptr<const RowReader> rows(const std::string& /*name*/) const { return nullptr; }
  virtual std::string summary() const { return ""; }                          // "" or a line about what the files hold
  virtual std::vector<std::string> notes() const { return {}; }               // what was guessed, or may surprise
  virtual std::map<std::string, std::string> metadata() const { return {}; }  // Dataset::metadata
  virtual std::vector<DataPart> parts() const { return {}; }                  // Dataset::parts
  // The samples, where they are pictures in files: there are no arrays then.
  virtual std::shared_ptr<const PictureFiles> pictures() const { return nullptr; }
};

enum class DataRole { kTrain, kEvaluate };  // which files of a folder that holds both: for training, for tests

// How a path is read: as the user says, for what, and what the model knows.
struct ReadOptions : DataOptions {
  std::optional<DataRole> role;                 // as the entry point says
  std::optional<int64_t> ignored_label;         // the label that the loss ignores
  std::map<std::string, std::string> metadata;  // of the model, from earlier data: Dataset::metadata
  // How many tokens the model tells apart in an input; 0 if that is not known. Takes as long as a flattening.
  std::function<int64_t(const std::string&)> vocabulary = {};
  // Copies share what they find, so that no picture is checked twice.
  std::shared_ptr<PictureFaults> faults = std::make_shared<PictureFaults>();
};

inline bool is_for_training(const ReadOptions& options) {
  return options.role.value_or(DataRole::kTrain) == DataRole::kTrain;
}

// What a path gives for some inputs.
struct DataArrays {
  TensorMap tensors;
  RowReaders readers;
  std::shared_ptr<const PictureFiles> pictures;  // the samples, where they are files; null for arrays
  std::string summary;
  std::vector<std::string> notes;
  std::map<std::string, std::string> metadata;
  std::vector<DataPart> parts;
};

}  // namespace onnx_train
