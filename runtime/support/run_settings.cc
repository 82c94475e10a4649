#include "runtime/support/run_settings.h"

#include "onnx_passes/ir/error.h"

namespace onnx_train {

std::map<std::string, std::string> recorded(const std::vector<Setting>& settings) {
  std::map<std::string, std::string> values;
  for (const Setting& setting : settings) values[setting.name] = setting.value;
  return values;
}

std::vector<std::string> compare(const std::vector<Setting>& settings,
                                 const std::map<std::string, std::string>& before) {
  std::vector<std::string> changes;
  std::string refused, way_out;
  for (const Setting& setting : settings) {
    const auto saved = before.find(setting.name);
    const std::string old = saved == before.end() ? "not recorded" : saved->second;
    // An earlier version knew nothing of the option.
    if (old == setting.value || (saved == before.end() && setting.value == "none")) continue;
    const std::string change = concat(setting.name, " was ", old, " and is ", setting.value);
    if (setting.on_resume == OnResume::kMayChange) {
      changes.push_back(change);
    } else {
      refused += concat(refused.empty() ? "" : ", ", change);
      way_out += setting.way_out;
    }
  }
  if (!refused.empty()) {
    fail_as(ErrorCode::kCannotResume, "cannot resume: ", refused,
            "; a run keeps these from its start (docs/training.md), another run begins with another --out", way_out);
  }
  return changes;
}

}  // namespace onnx_train
