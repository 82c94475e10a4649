#include "tools/fit/resolved_options.h"

#include "tools/arguments.h"

namespace onnx_train {
namespace {

using nlohmann::ordered_json;

struct ToJson {
  const Range& range;

  template <typename T>
  ordered_json operator()(const T* value) const {
    return *value;
  }
  // A default outside of what can be given stands for none: no limit, no such step.
  bool holds(double value) const { return range.above ? value > range.least : value >= range.least; }
  ordered_json operator()(const int64_t* value) const {
    return holds(static_cast<double>(*value)) ? ordered_json(*value) : ordered_json();
  }
  ordered_json operator()(const double* value) const { return holds(*value) ? ordered_json(*value) : ordered_json(); }
  template <typename T>
  ordered_json operator()(const std::optional<T>* value) const {
    return *value ? ordered_json(**value) : ordered_json();
  }
  ordered_json operator()(const std::string* value) const {
    return value->empty() ? ordered_json() : ordered_json(*value);
  }
};

}  // namespace

std::string options_to_json(const std::vector<CommandOption>& options, const ordered_json& derived) {
  ordered_json json = ordered_json::object();
  for (const CommandOption& option : options) {
    json[key_of(option)] =
        std::visit([&](const auto* value) { return ToJson{option.target.range}(value); }, option.target.to);
  }
  json["derived"] = derived;
  // A path may hold bytes that are no UTF-8.
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace onnx_train
