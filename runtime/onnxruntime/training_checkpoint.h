// The checkpoints of ONNX Runtime's training, as generate_artifacts and CheckpointState.save_checkpoint write them: a
// FlatBuffers file since version 1.16, a folder of protobuf messages before. Reading trusts nothing: each size is held
// against that of the file. Tensors of a file are views of it while it is mapped (mapped_file.h). Functions on files;
// any thread. They throw Error that names the file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

struct OrtOptimizerGroup {
  std::string name;                         // "group0"
  int64_t step = 0;                         // the number of updates so far
  float learning_rate = 0;                  // the initial one of a schedule; 0 where it is not known
  std::map<std::string, TensorMap> states;  // "momentum0", "momentum1" of each parameter
};

struct OrtCheckpoint {
  TensorMap trained, frozen;
  bool is_nominal = false;  // names without values
  std::vector<OrtOptimizerGroup> groups;
  std::map<std::string, std::string> properties;  // the user's numbers and texts, as texts
};

OrtCheckpoint read_ort_checkpoint(const std::string& path);
// Of a folder.
OrtCheckpoint read_ort_checkpoint_folder(const std::string& path);

// Whether the path is a checkpoint of either kind, by the first bytes of the file or the names in the folder.
bool is_ort_checkpoint(const std::string& path);

// The shortest text that is read as this number.
std::string float_text(float value);

}  // namespace onnx_train
