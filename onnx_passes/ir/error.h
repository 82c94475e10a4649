// The one exception of the project, for everything that is not a bug of ours: bad files, bad arguments, models that
// cannot be trained, devices that are not there. The message is one line that names the part, the node, tensor or
// file, what was found, and what to do; the command prints it as it is.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace onnx_train {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The arguments, streamed one after the other into a string.
template <typename... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

// Throws Error with the arguments streamed into its message.
template <typename... Args>
[[noreturn]] void fail(const Args&... args) {
  throw Error(concat(args...));
}

}  // namespace onnx_train
