// Writes the text of a function's body line by line, in terms of names it hands out: for bodies too varied to be one
// literal.
#pragma once

#include <string>
#include <unordered_map>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

class BodyText {
 public:
  // name = expression, or name_2, name_3, ... where the name is taken. Returns the name.
  std::string let(const std::string& name, const std::string& expression) {
    const int count = ++counts_[name];
    const std::string free = count == 1 ? name : concat(name, "_", count);
    line(free, " = ", expression);
    return free;
  }
  template <typename... Args>
  void line(const Args&... args) {
    text_ += concat("  ", args..., "\n");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::unordered_map<std::string, int> counts_;
};

}  // namespace onnx_train
