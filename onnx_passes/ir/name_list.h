// A list of names in an attribute: "rows, columns, sums". Pure functions.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace onnx_train {

inline constexpr std::string_view kBetweenNames = ", ";

inline std::vector<std::string> split_names(std::string_view list) {
  std::vector<std::string> names;
  while (!list.empty()) {
    const size_t end = std::min(list.find(kBetweenNames), list.size());
    names.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + kBetweenNames.size(), list.size()));
  }
  return names;
}

inline std::string join_names(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list.append(list.empty() ? "" : kBetweenNames).append(name);
  return list;
}

// Returns the place of a name in the list; -1 if it is not there.
inline int place_in(const std::vector<std::string>& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? -1 : static_cast<int>(found - names.begin());
}

}  // namespace onnx_train
