// This process, and those that it starts. Functions that fail return what is said, with errno set. Any thread may ask;
// one thread starts and awaits a process.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace onnx_train::platform {

int64_t process_id();
int64_t thread_id();  // of the calling thread, among all of the machine
std::string host_name();
// Sets a variable of the environment. No other thread may read the environment meanwhile.
void set_variable(const char* name, const char* value, bool overwrite);

// Ends the process without destroying static objects: what std::at_quick_exit has been given is called, where the
// system knows it.
[[noreturn]] void exit_quickly(int status);

// The words with which this process was started, the program first.
std::vector<std::string> own_command_line();
// Becomes this program anew, with these words; returns if that fails.
void run_again(const std::vector<std::string>& command_line);
// Whether the system ends this process (SIGTERM) as soon as the one that has started it ends.
void end_with_parent(bool ends);

// How a process has ended: by itself, with a status, or by a signal, which is not 0 then.
struct ProcessEnd {
  int status = 0, signal = 0;
};

using Child = std::intptr_t;

// Starts this program again with these words and with variables, NAME=VALUE, before those of this process; below 0 if
// that fails.
Child start_rank(const std::vector<std::string>& command_line, const std::vector<std::string>& variables);
// Starts this program again apart from the terminal: its standard input is empty, its outputs are the open file `log`,
// Ctrl-C does not reach it, and it ends with this process. `sorry` is written there if the program cannot be run; its
// status is 127 then.
Child start_apart(const std::vector<std::string>& command_line, int log, const std::string& sorry);

ProcessEnd wait_for(Child child);
// Asks whether it has ended, and how: 1 if it has, 0 if it runs, below 0 if the system cannot tell.
int ask_for_end(Child child, ProcessEnd* end);
void interrupt(Child child);  // as Ctrl-C does
void terminate(Child child);

// Runs a line of the shell; its status as the system says it, and what it writes to its standard error. Below 0 if it
// cannot be run.
std::pair<int, std::string> run_line(const std::string& line);

}  // namespace onnx_train::platform
