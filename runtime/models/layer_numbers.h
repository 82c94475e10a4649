// Numbers that the configuration of an adapter has for some layers: PEFT's rank_pattern and alpha_pattern. A plain
// value; any thread. Throws Error that names the file and the key.
#pragma once

#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace onnx_train {

// PEFT takes the first key that is, as a regular expression, the module's name or its last parts.
class LayerNumbers {
 public:
  // `config` is what the file at `path` holds.
  LayerNumbers(const nlohmann::ordered_json& config, const std::string& path, const char* key);

  double of(const std::string& module, double otherwise) const;

 private:
  std::vector<std::pair<std::regex, double>> patterns_;
};

}  // namespace onnx_train
