// The one exception of the project, for everything that is not a bug of ours: bad files, bad arguments, models that
// cannot be trained, devices that are not there. The message is one line that names the part, the node, tensor or
// file, what was found, and what to do; the command prints it as it is.
#pragma once

#include <concepts>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace onnx_train {

// What kind of failure it is, for programs that call the library.
enum class ErrorCode {
  kUnsupported,  // the model, or what is asked of it
  kUsage,        // an argument that is wrong whatever the model holds
  kFile,         // cannot be read or written, or does not hold what it should
  kData,         // inputs of a run: names, types, shapes, numbers out of range
  kMemory,       // not enough
  kDevice,       // is not there, or failed
};

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ErrorCode code = ErrorCode::kUnsupported)
      : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// The arguments, streamed one after the other into a string. Names are made of text and numbers so often that these
// do without a stream.
template <typename... Args>
std::string concat(const Args&... args) {
  if constexpr (((std::convertible_to<const Args&, std::string_view> || std::same_as<Args, char> ||
                  std::same_as<Args, int> || std::same_as<Args, int64_t> || std::same_as<Args, size_t>)&&...)) {
    std::string text;
    const auto append = [&](const auto& arg) {
      if constexpr (std::same_as<std::decay_t<decltype(arg)>, char>) {
        text += arg;
      } else if constexpr (std::integral<std::decay_t<decltype(arg)>>) {
        text += std::to_string(arg);
      } else {
        text += std::string_view(arg);
      }
    };
    (append(args), ...);
    return text;
  } else {
    std::ostringstream out;
    (out << ... << args);
    return std::move(out).str();
  }
}

// Throws Error with the arguments streamed into its message.
template <typename... Args>
[[noreturn]] void fail(const Args&... args) {
  throw Error(concat(args...));
}
template <typename... Args>
[[noreturn]] void fail_as(ErrorCode code, const Args&... args) {
  throw Error(concat(args...), code);
}

}  // namespace onnx_train
