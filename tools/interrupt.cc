#include "tools/interrupt.h"

#include <csignal>

#include "platform/signals.h"
#include "platform/terminal.h"
#include "tools/report/screen.h"

namespace onnx_train {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // so that a signal handler may set it

void on_signal(int signal) {
  // A launcher and a system that both tell a process to stop say it twice.
  if (!interrupted.exchange(true) || signal == SIGTERM) return;
  restore_terminal();
  platform::end_now(kInterruptedStatus);
}

void on_lost_page(int) {
  constexpr char kMessage[] =
      "onnx-train: a model or data file was shortened while it was read; start again when nothing writes it\n";
  restore_terminal();
  platform::write_all(platform::kStandardError, kMessage, sizeof kMessage - 1);
  platform::end_now(1);
}

}  // namespace

void request_interrupt() { interrupted = true; }
void forget_interrupt() { interrupted = false; }

void report_lost_pages() { platform::catch_lost_pages(on_lost_page); }

const std::atomic<bool>& catch_ctrl_c() {
  platform::catch_signal(SIGINT, on_signal);
  return interrupted;
}

const std::atomic<bool>& catch_interrupts() {
  platform::catch_signal(SIGTERM, on_signal);
  return catch_ctrl_c();
}

}  // namespace onnx_train
