#include "tools/config.h"

#include <yaml-cpp/yaml.h>
#include <algorithm>
#include <cctype>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

using nlohmann::ordered_json;

// A name and the texts of its values, in the order of the file.
using ConfigEntry = std::pair<std::string, std::vector<std::string>>;

std::string suffix_of(const std::string& path) {
  std::string suffix = std::filesystem::path(path).extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(), [](unsigned char c) { return std::tolower(c); });
  return suffix;
}

bool is_yaml(const std::string& path) { return suffix_of(path) == ".yaml" || suffix_of(path) == ".yml"; }

[[noreturn]] void refuse_value(const std::string& path, const std::string& name) {
  throw UsageError(concat(path, ": '", name, "' is neither a value nor a list of values"));
}

std::string scalar_of(const std::string& path, const std::string& name, const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_primitive() || value.is_null()) refuse_value(path, name);
  return value.dump();
}

std::vector<ConfigEntry> read_json(const std::string& path, const std::string& text) {
  const ordered_json object = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false, /*ignore_comments=*/true);
  if (!object.is_object()) throw UsageError(path + " is no JSON object of options");
  std::vector<ConfigEntry> entries;
  for (const auto& [name, value] : object.items()) {
    if (value.is_null() || (value.is_object() && name == "derived")) continue;
    ConfigEntry entry{name, {}};
    if (value.is_array()) {
      for (const auto& item : value) entry.second.push_back(scalar_of(path, name, item));
    } else {
      entry.second.push_back(scalar_of(path, name, value));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<ConfigEntry> read_yaml(const std::string& path, const std::string& text) {
  std::vector<ConfigEntry> entries;
  try {
    const YAML::Node mapping = YAML::Load(text);
    if (!mapping.IsMap()) throw UsageError(path + " is no YAML mapping of options");
    for (const auto& item : mapping) {
      const auto name = item.first.as<std::string>();
      const YAML::Node& value = item.second;
      if (value.IsNull() || (value.IsMap() && name == "derived")) continue;
      ConfigEntry entry{name, {}};
      if (value.IsScalar()) entry.second.push_back(value.Scalar());
      for (size_t i = 0; value.IsSequence() && i < value.size(); ++i) {
        if (!value[i].IsScalar()) refuse_value(path, name);
        entry.second.push_back(value[i].Scalar());
      }
      if (value.IsMap()) refuse_value(path, name);
      entries.push_back(std::move(entry));
    }
  } catch (const YAML::Exception& e) {
    throw UsageError(concat(path, ", line ", e.mark.line + 1, ": ", e.msg));
  }
  return entries;
}

std::string read_text(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) fail_as(ErrorCode::kFile, path, " is no file of options");
  return read_file(path);
}

void set_from_file(const std::string& path, const ConfigEntry& entry, const CommandOption& option) {
  const auto& [name, values] = entry;
  const bool is_list = std::holds_alternative<std::vector<std::string>*>(option.target.to);
  if (is_flag(option) && (values.size() != 1 || (values[0] != "true" && values[0] != "false"))) {
    throw UsageError(concat(path, ": '", name, "' is true or false"));
  }
  if (!is_list && values.size() != 1) throw UsageError(concat(path, ": '", name, "' takes one value, not a list"));
  try {
    for (const std::string& value : values) assign(option, value);
  } catch (const UsageError& e) {
    throw UsageError(concat(path, ": ", e.what()), e.code());
  }
}

}  // namespace

bool names_option(const CommandOption& option, std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  if (is_positional(option)) {
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  }
  return key_of(option) == name;
}

CommandOption config_option(std::string* path) {
  const auto check = [](const std::string& text) {
    if (suffix_of(text) != ".json" && !is_yaml(text)) fail("a name that ends in .json, .yaml or .yml");
  };
  return {"--config",
          {path, check},
          "options by their names from a JSON or YAML file, such as a run's options.json; those given here win",
          "FILE"};
}

void read_config(const std::string& path, const std::vector<CommandOption>& options, std::set<std::string>* given) {
  const std::string text = read_text(path);
  std::set<std::string> set;
  for (const ConfigEntry& entry : is_yaml(path) ? read_yaml(path, text) : read_json(path, text)) {
    const auto option = std::find_if(options.begin(), options.end(),
                                     [&](const CommandOption& o) { return names_option(o, entry.first); });
    if (option == options.end()) {
      std::vector<std::string> known;
      for (const CommandOption& o : options) known.push_back(key_of(o));
      throw UsageError(concat(path, ": there is no option '", entry.first, "'", did_you_mean(entry.first, known)),
                       ErrorCode::kUnknownOption);
    }
    const std::string key = key_of(*option);
    if (key == "config" || given->count(key) > 0) continue;
    if (!set.insert(key).second) throw UsageError(concat(path, ": '", entry.first, "' is given twice"));
    set_from_file(path, entry, *option);
  }
  given->merge(set);
}

}  // namespace onnx_train
