// A run of ONNX Runtime's training as a training model of ours: eval_model.onnx or training_model.onnx,
// optimizer_model.onnx and a checkpoint in, weights, moments and the number of steps out
// (docs/from_onnxruntime_training.md). Functions on files; any thread. They throw Error that names the file.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct OrtImportSettings {
  std::string path;             // the folder of the four files, or a checkpoint with the models beside it
  std::string checkpoint = {};  // "": the one in the folder
  std::string prefix = {};      // of the names of the files
  std::string optimizer = {};   // "": the run's
  std::vector<std::string> metrics = {};
  bool accumulate = false;
};

struct OrtImport {
  Model model;
  std::vector<std::pair<std::string, std::string>> notes;  // what was found: "loss", "cross_entropy(..)"
};

OrtImport import_ort_training(const OrtImportSettings& settings);

// Whether the path is a folder with models of ONNX Runtime's training and a checkpoint, or such a checkpoint.
bool is_ort_training(const std::string& path);

}  // namespace onnx_train
