#include "library/guard.h"

namespace onnx_train {
namespace {

// Longer messages are cut: this must not allocate.
thread_local char last_error[4096] = "";
thread_local const char* last_error_code = "";

}  // namespace

onnx_train_status failed(onnx_train_status status, const char* message, const char* code) {
  size_t length = 0;
  for (; message[length] && length + 1 < sizeof last_error; ++length) {
    last_error[length] = message[length] == '\n' ? ' ' : message[length];
  }
  last_error[length] = '\0';
  last_error_code = code;
  return status;
}

onnx_train_status status_of(const Error& error) {
  switch (error.kind()) {
    case ErrorCode::kUsage: return ONNX_TRAIN_USAGE;
    case ErrorCode::kFile: return ONNX_TRAIN_FILE;
    case ErrorCode::kUnsupported: return ONNX_TRAIN_UNSUPPORTED;
    case ErrorCode::kData: return ONNX_TRAIN_DATA;
    case ErrorCode::kMemory: return ONNX_TRAIN_MEMORY;
    case ErrorCode::kDevice: return ONNX_TRAIN_DEVICE;
    default: return ONNX_TRAIN_INTERNAL;  // no kind
  }
}

void read_options(const onnx_train_option* given, size_t count, const std::vector<CommandOption>& known) {
  if (count > 0) required(given, "options");
  for (size_t i = 0; i < count; ++i) {
    const char* const name = &required(given[i].name, "the name of an option");
    set_option(known, name, &required(given[i].value, name));
  }
}

}  // namespace onnx_train

extern "C" {

const char* onnx_train_version(void) { return ONNX_TRAIN_VERSION; }

const char* onnx_train_last_error(void) { return onnx_train::last_error; }

const char* onnx_train_last_error_code(void) { return onnx_train::last_error_code; }
}
