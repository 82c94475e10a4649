// The one writer of what a person reads: whole lines, each by one write, on stdout or stderr, so that lines of the two
// streams never cut each other where both go to one terminal, pipe or file. It also owns the status line, which a
// terminal shows at its bottom and redraws: whatever else is printed takes its place. Process-wide; any thread.
#pragma once

#include <string>
#include <vector>

namespace onnx_train {

// Prints `text`, which ends in a newline, to stdout: at once, together with all that was printed before.
void print(const std::string& text);  // throws Error when stdout cannot be written
// Prints one line to stderr, after everything that was printed to stdout. Newlines and other control characters in
// `line` become spaces.
void print_error(const std::string& line);
// Prints each note as a line to stderr, likewise: what is no error, but may not be what the user meant.
void print_notes(const std::vector<std::string>& notes);
// From here on nothing but errors is printed, after the number of this process among those of a run.
void speak_as_rank(int rank);
// Redraws the status line; stdout must be a terminal, and `text` narrower than it.
void show_status(const std::string& text);
// Leaves the status line where it stands; what follows comes below it.
void keep_status();
// From here on what is printed waits, and the status line is not shown: a whole-screen view has the terminal.
void hold_output();
// The last lines that wait, at most `lines` of them.
std::vector<std::string> held_output(size_t lines);
// Prints what waits, in its order.
void release_output();
// Writes out what std::printf still holds. Throws Error when stdout cannot be written: a full disk.
void flush_output();

// Whether stdout is a terminal.
bool is_terminal();
// Columns at which prose is wrapped: those that the environment's COLUMNS says, else the terminal's; kPlainWidth where
// stdout is none.
size_t text_width();
// Columns of tables with a row for each node or tensor: likewise, but 0 where stdout is no terminal and COLUMNS is not
// set: each row is one line, and nothing in it is shortened, as programs want it.
size_t table_width();

}  // namespace onnx_train
