// What a run was made with, as its checkpoints record it, and what may change when it is resumed. One row a setting,
// named as the option of `fit`: a fixed one must be the same, or the training would silently be another; others may
// change, and that is said. Plain values; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace onnx_train {

enum class OnResume { kFixed, kMayChange };

struct Setting {
  std::string name, value;
  OnResume on_resume;
};

// As a checkpoint holds them: value by name.
std::map<std::string, std::string> recorded(const std::vector<Setting>& settings);

// The changes since `before`, a line each: "lr was 0.01 and is 0.001". Throws Error that lists every fixed setting that
// differs, or that `before` does not have, with both values.
std::vector<std::string> compare(const std::vector<Setting>& settings,
                                 const std::map<std::string, std::string>& before);

}  // namespace onnx_train
