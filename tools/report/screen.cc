#include "tools/report/screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "onnx_passes/ir/error.h"
#include "tools/report/output.h"

namespace onnx_train {
namespace {

// The alternate screen, without a cursor and without wrapping; and back.
constexpr char kOpen[] = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
constexpr char kClose[] = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

std::atomic<bool> open_screen{false};
termios before{};  // how the terminal was; valid while a screen is open

// Signals that end a process, and leave no time to unwind.
constexpr int kFatal[] = {SIGABRT, SIGSEGV, SIGFPE, SIGILL, SIGQUIT};

void on_fatal_signal(int signal) {
  restore_terminal();
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void write_terminal(const char* text, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t written = write(STDOUT_FILENO, text + done, size - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // a terminal that is gone shows nothing
    done += static_cast<size_t>(written);
  }
}

}  // namespace

void restore_terminal() {
  if (!open_screen.exchange(false)) return;
  write_terminal(kClose, sizeof kClose - 1);
  tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

bool Screen::is_possible() {
  const char* const kind = std::getenv("TERM");
  if (!kind || !*kind || std::strcmp(kind, "dumb") == 0) return false;
  return isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0 && tcgetpgrp(STDIN_FILENO) == getpgrp();
}

Screen::Screen() {
  if (tcgetattr(STDIN_FILENO, &before) != 0) fail("the terminal does not say how it is set up");
  termios keys = before;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys.c_lflag |= NOFLSH;  // Ctrl-C would drop what is on its way to the screen, and leave a write waiting
  keys.c_cc[VMIN] = 0;
  keys.c_cc[VTIME] = 0;
  keys.c_cc[VSUSP] = _POSIX_VDISABLE;  // Ctrl-Z would leave the shell with this screen
  hold_output();
  open_screen = true;
  for (const int signal : kFatal) std::signal(signal, on_fatal_signal);
  tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  write_terminal(kOpen, sizeof kOpen - 1);
}

Screen::~Screen() {
  restore_terminal();
  for (const int signal : kFatal) std::signal(signal, SIG_DFL);
  release_output();
}

Screen::Size Screen::size() const {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

void Screen::draw(const std::vector<std::string>& lines) {
  std::string text;
  if (const Size now = size(); now != size_) {
    size_ = now;
    shown_.clear();
    text += "\x1b[2J";
  }
  for (size_t row = 0; row < std::min(size_.rows, std::max(lines.size(), shown_.size())); ++row) {
    const std::string line = row < lines.size() ? lines[row] : "";
    if (row < shown_.size() && shown_[row] == line) continue;
    text += concat("\x1b[", row + 1, ";1H\x1b[K", line);
  }
  shown_ = lines;
  write_terminal(text.data(), text.size());
}

char Screen::key(std::chrono::milliseconds time) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  char key = '\0';
  if (poll(&input, 1, static_cast<int>(time.count())) <= 0) return '\0';
  return read(STDIN_FILENO, &key, 1) == 1 ? key : '\0';
}

}  // namespace onnx_train
