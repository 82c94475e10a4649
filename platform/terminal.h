// The terminal and the standard streams. Process-wide; any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

namespace onnx_train::platform {

constexpr int kStandardInput = 0, kStandardOutput = 1, kStandardError = 2;

// Lets what is written be the same bytes on every system: newlines stay as they are.
void prepare_standard_streams();

// All bytes, however many writes the descriptor takes for them; false, with errno set, when they cannot be written. A
// signal handler may call it.
bool write_all(int descriptor, const char* data, size_t size);

// Waits for bytes of the standard input or for its end: above 0 if they are there, 0 if the time is over, below 0 with
// errno set.
int wait_for_input(std::chrono::milliseconds time);
// Reads some: their number, 0 at the end, below 0 with errno set.
std::ptrdiff_t read_input(char* to, size_t size);

bool is_terminal(int descriptor);

struct TerminalSize {
  size_t columns = 0, rows = 0;
};
// Of the terminal at the standard output; nothing if it does not say so.
std::optional<TerminalSize> terminal_size();

// Whether this process is the one that the terminal's keys reach.
bool has_foreground();
// Keys arrive without Enter and are not shown; Ctrl-C works, Ctrl-Z does not. False if the terminal does not say how it
// is set up.
bool remember_keys();
void take_keys();
// As before remember_keys. A signal handler may call it.
void give_keys_back();

}  // namespace onnx_train::platform
