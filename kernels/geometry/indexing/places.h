// The positions that names have among the inputs or outputs of a node. Plain values; pure functions.
#pragma once

#include <map>
#include <string>

namespace onnx_train {

using Places = std::map<std::string, int>;

// -1 if there is none, as for an empty name.
inline int place_of(const Places& places, const std::string& name) {
  const auto found = places.find(name);
  return found == places.end() ? -1 : found->second;
}

// Of the inputs or outputs of a function, which are those of a call of it.
template <typename Names>
Places places_of(const Names& names) {
  Places places;
  for (int i = 0; i < names.size(); ++i) places.emplace(names.Get(i), i);
  return places;
}

}  // namespace onnx_train
