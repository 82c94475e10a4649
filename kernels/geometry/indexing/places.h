// Positions of names among the inputs or outputs of a node. Plain values; pure functions.
#pragma once

#include <map>
#include <string>

namespace onnx_train {

using Places = std::map<std::string, int>;

// Returns the position, or -1 if there is none, such as for an empty name.
inline int place_of(const Places& places, const std::string& name) {
  const auto found = places.find(name);
  return found == places.end() ? -1 : found->second;
}

// Maps each input or output name of a function to its position, which is the same in a call.
template <typename Names>
Places places_of(const Names& names) {
  Places places;
  for (int i = 0; i < names.size(); ++i) places.emplace(names.Get(i), i);
  return places;
}

}  // namespace onnx_train
