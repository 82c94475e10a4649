// What every function of the C interface has in common: nothing is thrown across it, and the text of a failure is kept
// for the thread that called.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <vector>

#include "onnx_passes/ir/internal_error.h"
#include "onnx_train/onnx_train.h"
#include "runtime/support/options.h"

namespace onnx_train {

// Keeps `message` for onnx_train_last_error, and `code`, a constant, for onnx_train_last_error_code; returns `status`.
onnx_train_status failed(onnx_train_status status, const char* message, const char* code = "");
onnx_train_status status_of(const Error& error);

// f(), and the status for what it throws.
template <typename F>
onnx_train_status guarded(const F& f) {
  try {
    f();
    return ONNX_TRAIN_OK;
  } catch (const InternalError& error) {
    return failed(ONNX_TRAIN_INTERNAL, error.what());
  } catch (const Error& error) {
    return failed(status_of(error), error.what(), error.code_text());
  } catch (const std::bad_alloc&) {
    return failed(ONNX_TRAIN_MEMORY, "out of memory", Error("", ErrorCode::kOutOfMemory).code_text());
  } catch (const std::exception& error) {
    return failed(ONNX_TRAIN_INTERNAL, error.what());
  } catch (...) {
    return failed(ONNX_TRAIN_INTERNAL, "an exception of unknown type");
  }
}

// Throws UsageError unless the pointer is there.
template <typename T>
T& required(T* pointer, const char* what) {
  if (!pointer) throw UsageError(concat(what, " is null"));
  return *pointer;
}

// Writes the given options to the targets of `known`.
void read_options(const onnx_train_option* given, size_t count, const std::vector<CommandOption>& known);

}  // namespace onnx_train
