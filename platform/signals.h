// Signals, by which the system interrupts this process. Handlers are called between any two instructions: they may call
// what says so. Process-wide.
#pragma once

#include <string>

namespace onnx_train::platform {

using SignalHandler = void (*)(int signal);

// For SIGINT and SIGTERM, which every system has. Calls of the system that it interrupts go on.
void catch_signal(int signal, SignalHandler handler);
// For reading a page of a mapped file that is no longer there.
void catch_lost_pages(SignalHandler handler);
// For those that end a process and leave no time to unwind.
void catch_fatal_signals(SignalHandler handler);
void leave_fatal_signals();
// A file that must not grow is an error of writing to it, not the end.
void ignore_file_limits();

// "Killed".
std::string describe_signal(int signal);

// Ends the process at once. A signal handler may call it.
[[noreturn]] void end_now(int status);

}  // namespace onnx_train::platform
