#include "tools/interrupt.h"

#include <csignal>

#include <unistd.h>

#include "tools/report/screen.h"

namespace onnx_train {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // so that a signal handler may set it

void on_signal(int signal) {
  // A launcher and a system that both tell a process to stop say it twice.
  if (!interrupted.exchange(true) || signal == SIGTERM) return;
  restore_terminal();
  _exit(kInterruptedStatus);
}

void on_lost_page(int) {
  constexpr char kMessage[] =
      "onnx-train: a model or data file was shortened while it was read; start again when nothing writes it\n";
  restore_terminal();
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  _exit(1);
}

void catch_signal(int signal) {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void request_interrupt() { interrupted = true; }
void forget_interrupt() { interrupted = false; }

void report_lost_pages() {
  struct sigaction action {};
  action.sa_handler = on_lost_page;
  sigaction(SIGBUS, &action, nullptr);
}

const std::atomic<bool>& catch_ctrl_c() {
  catch_signal(SIGINT);
  return interrupted;
}

const std::atomic<bool>& catch_interrupts() {
  catch_signal(SIGTERM);
  return catch_ctrl_c();
}

}  // namespace onnx_train
