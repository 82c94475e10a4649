#include "platform/signals.h"

#include <windows.h>

#include <csignal>
#include <cstdlib>

namespace onnx_train::platform {
namespace {

SignalHandler lost_page = nullptr;

// What SIGBUS is on POSIX.
LONG WINAPI on_exception(EXCEPTION_POINTERS* about) {
  if (about->ExceptionRecord->ExceptionCode == static_cast<DWORD>(EXCEPTION_IN_PAGE_ERROR)) lost_page(0);
  return EXCEPTION_CONTINUE_SEARCH;
}

}  // namespace

void catch_signal(int signal, SignalHandler handler) { std::signal(signal, handler); }

void catch_lost_pages(SignalHandler handler) {
  lost_page = handler;
  AddVectoredExceptionHandler(/*First=*/0, on_exception);
}

void catch_fatal_signals(SignalHandler) {}
void leave_fatal_signals() {}
void ignore_file_limits() {}

std::string describe_signal(int signal) { return "signal " + std::to_string(signal); }

void end_now(int status) { std::_Exit(status); }

}  // namespace onnx_train::platform
