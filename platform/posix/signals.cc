#include "platform/signals.h"

#include <unistd.h>

#include <csignal>
#include <cstring>

namespace onnx_train::platform {
namespace {

constexpr int kFatal[] = {SIGABRT, SIGSEGV, SIGFPE, SIGILL, SIGQUIT};

}  // namespace

void catch_signal(int signal, SignalHandler handler) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

void catch_lost_pages(SignalHandler handler) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigaction(SIGBUS, &action, nullptr);
}

void catch_fatal_signals(SignalHandler handler) {
  for (const int signal : kFatal) std::signal(signal, handler);
}

void leave_fatal_signals() { catch_fatal_signals(SIG_DFL); }

void ignore_file_limits() { std::signal(SIGXFSZ, SIG_IGN); }

std::string describe_signal(int signal) { return strsignal(signal); }

void end_now(int status) { _exit(status); }

}  // namespace onnx_train::platform
