#include "platform/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>

namespace onnx_train::platform {
namespace {

termios before{};  // how the terminal was, since remember_keys

}  // namespace

void prepare_standard_streams() {}

bool write_all(int descriptor, const char* data, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t written = write(descriptor, data + done, size - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

int wait_for_input(std::chrono::milliseconds time) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, static_cast<int>(time.count()));
}

std::ptrdiff_t read_input(char* to, size_t size) { return read(STDIN_FILENO, to, size); }

bool is_terminal(int descriptor) { return isatty(descriptor) != 0; }

std::optional<TerminalSize> terminal_size() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return std::nullopt;
  return TerminalSize{size.ws_col, size.ws_row};
}

bool has_foreground() { return tcgetpgrp(STDIN_FILENO) == getpgrp(); }

bool remember_keys() { return tcgetattr(STDIN_FILENO, &before) == 0; }

void take_keys() {
  termios keys = before;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys.c_lflag |= NOFLSH;  // Ctrl-C would drop what is on its way to the screen, and leave a write waiting
  keys.c_cc[VMIN] = 0;
  keys.c_cc[VTIME] = 0;
  keys.c_cc[VSUSP] = _POSIX_VDISABLE;  // Ctrl-Z would leave the shell with this screen
  tcsetattr(STDIN_FILENO, TCSANOW, &keys);
}

void give_keys_back() { tcsetattr(STDIN_FILENO, TCSANOW, &before); }

}  // namespace onnx_train::platform
