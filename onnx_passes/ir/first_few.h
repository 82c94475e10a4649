// Lists in messages and tables. A pure function; any thread.
#pragma once

#include <algorithm>
#include <string>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

// "a, b, c and 9 more": at most `most` of the items, each as `text_of` writes it, and, after the first one, no more
// than `length` characters of them. `items` is any range with a size.
template <typename Items, typename TextOf>
std::string first_few(const Items& items, size_t most, const TextOf& text_of, size_t length = std::string::npos,
                      const char* separator = ", ") {
  std::string text;
  size_t shown = 0;
  for (auto item = items.begin(); item != items.end() && shown < most; ++item, ++shown) {
    const std::string next = concat(shown == 0 ? "" : separator, text_of(*item));
    if (shown > 0 && text.size() + next.size() > length) break;
    text += next;
  }
  const size_t left = static_cast<size_t>(items.size()) - shown;
  return left > 0 ? concat(text, " and ", left, " more") : text;
}

}  // namespace onnx_train
