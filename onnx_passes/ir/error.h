// The project's only exception type, thrown for everything that is not a bug of ours: invalid files and arguments,
// models that cannot be trained, missing devices. The message is one line that names the part, the node, tensor or
// file, what was found, and what to do; the command prints it, with the error's code if it has one. Plain values; any
// thread.
#pragma once

#include <concepts>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace onnx_train {

// What failed. The first six are kinds, for failures that have no page; the others are the rows of error_codes.def,
// each of which is of a kind.
enum class ErrorCode {
  kUnsupported,  // the model, or the request
  kUsage,        // an argument that is wrong for every model
  kFile,         // cannot be read or written, or has invalid contents
  kData,         // inputs of a run: names, types, shapes, numbers out of range
  kMemory,       // not enough memory
  kDevice,       // missing or failed
#define ONNX_TRAIN_ERROR(name, number, kind, title) name = number,
#include "onnx_passes/ir/error_codes.def"
};

// A row of error_codes.def: an error with a page, docs/errors/OT1001.md.
struct ErrorRow {
  ErrorCode code, kind;
  const char* text;   // "OT1001"
  const char* title;  // of the page
};
std::span<const ErrorRow> error_rows();

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ErrorCode code = ErrorCode::kUnsupported)
      : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }
  ErrorCode kind() const;         // one of the first six
  const char* code_text() const;  // "OT1001"; "" for an error without a page

 private:
  ErrorCode code_;
};

template <typename T>
concept Printable = requires(std::ostream& out, const T& value) {
  out << value;
};

// Concatenates the arguments. Text and numbers, the common case for names, are formatted without a stream.
template <Printable... Args>
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
