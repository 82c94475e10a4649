// Ctrl-C, twice: the first one asks the training to stop after its step, the second one ends the process. SIGTERM asks,
// however often it comes.
#pragma once

#include <atomic>

namespace onnx_train {

constexpr int kInterruptedStatus = 130;

// Installs the handlers; the flag becomes true with the first signal.
const std::atomic<bool>& catch_interrupts();

// The same for Ctrl-C alone: SIGTERM ends the process.
const std::atomic<bool>& catch_ctrl_c();
// The next signal is a first one again.
void forget_interrupt();

// Does what the first signal does.
void request_interrupt();

// From now on a mapped file that is shortened while it is read ends the program with a message and exit status 1, not
// with SIGBUS.
void report_lost_pages();

}  // namespace onnx_train
