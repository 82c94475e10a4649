#include "runtime/data/class_names.h"

#include <nlohmann/json.hpp>

namespace onnx_train {

std::string classes_to_json(const std::vector<std::string>& classes) {
  if (classes.empty()) return "";
  // A name of a folder may hold bytes that are no UTF-8.
  return nlohmann::json(classes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<std::string> classes_from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> classes;
  if (!json.is_array()) return {};
  for (const auto& name : json) {
    if (!name.is_string()) return {};
    classes.push_back(name.get<std::string>());
  }
  return classes;
}

}  // namespace onnx_train
