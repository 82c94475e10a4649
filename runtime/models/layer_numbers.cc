#include "runtime/models/layer_numbers.h"

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// Takes time that grows with the length of a name, whatever the pattern: files are not trusted.
constexpr auto kSyntax = std::regex::ECMAScript | std::regex_constants::__polynomial;
constexpr size_t kMostPattern = 1000;  // characters

}  // namespace

LayerNumbers::LayerNumbers(const nlohmann::ordered_json& config, const std::string& path, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return;
  if (!found->is_object()) fail_as(ErrorCode::kFile, path, ": '", key, "' is no object of patterns and numbers");
  for (const auto& [pattern, number] : found->items()) {
    if (!number.is_number()) fail_as(ErrorCode::kFile, path, ": '", key, "' of '", pattern, "' is no number");
    if (pattern.size() > kMostPattern)
      fail_as(ErrorCode::kFile, path, ": '", key, "' has a pattern of ", pattern.size(), " characters");
    try {
      patterns_.emplace_back(std::regex("(.*\\.)?(" + pattern + ")", kSyntax), number.get<double>());
    } catch (const std::regex_error&) {
      fail_as(ErrorCode::kFile, path, ": '", key, "' has '", pattern, "', which is no regular expression");
    }
  }
}

double LayerNumbers::of(const std::string& module, double otherwise) const {
  for (const auto& [pattern, number] : patterns_) {
    if (std::regex_match(module, pattern)) return number;
  }
  return otherwise;
}

}  // namespace onnx_train
