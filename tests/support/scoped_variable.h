// A variable of the environment that a test sets and restores.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace onnx_train {

// Sets a variable of the environment while it lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

}  // namespace onnx_train
