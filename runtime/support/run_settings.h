// The settings of a run, as its checkpoints record them, and which of them may change when it is resumed. Each has the
// name of an option of `fit`. A fixed setting must be equal, because otherwise it would silently be another training;
// changes of other settings are reported. Plain values; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace onnx_train {

enum class OnResume { kFixed, kMayChange };

struct Setting {
  std::string name, value;
  OnResume on_resume;
  const char* way_out = "";  // "; ..." at the end of the error for a fixed setting that differs
};

// As stored in a checkpoint: value by name.
std::map<std::string, std::string> recorded(const std::vector<Setting>& settings);

// The changes since `before`, one per line: "lr was 0.01 and is 0.001". Throws Error that lists, with both values,
// every fixed setting that differs or that `before` does not contain, unless it is "none".
std::vector<std::string> compare(const std::vector<Setting>& settings,
                                 const std::map<std::string, std::string>& before);

}  // namespace onnx_train
