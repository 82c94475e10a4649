#include "tools/report/screen.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "onnx_passes/ir/error.h"
#include "platform/signals.h"
#include "platform/terminal.h"
#include "tools/report/output.h"

namespace onnx_train {
namespace {

// The alternate screen, without a cursor and without wrapping; and back.
constexpr char kOpen[] = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
constexpr char kClose[] = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

std::atomic<bool> open_screen{false};

void on_fatal_signal(int signal) {
  restore_terminal();
  std::signal(signal, SIG_DFL);
  raise(signal);
}

// A terminal that is gone shows nothing.
void write_terminal(const char* text, size_t size) { platform::write_all(platform::kStandardOutput, text, size); }

}  // namespace

void restore_terminal() {
  if (!open_screen.exchange(false)) return;
  write_terminal(kClose, sizeof kClose - 1);
  platform::give_keys_back();
}

bool Screen::is_possible() {
  const char* const kind = std::getenv("TERM");
  if (!kind || !*kind || std::strcmp(kind, "dumb") == 0) return false;
  return platform::is_terminal(platform::kStandardInput) && platform::is_terminal(platform::kStandardOutput) &&
         platform::has_foreground();
}

Screen::Screen() {
  if (!platform::remember_keys()) fail("the terminal does not say how it is set up");
  hold_output();
  open_screen = true;
  platform::catch_fatal_signals(on_fatal_signal);
  platform::take_keys();
  write_terminal(kOpen, sizeof kOpen - 1);
}

Screen::~Screen() {
  restore_terminal();
  platform::leave_fatal_signals();
  release_output();
}

Screen::Size Screen::size() const {
  const auto size = platform::terminal_size();
  if (!size || size->columns == 0 || size->rows == 0) return {};
  return {size->columns, size->rows};
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
  char key = '\0';
  if (platform::wait_for_input(time) <= 0) return '\0';
  return platform::read_input(&key, 1) == 1 ? key : '\0';
}

}  // namespace onnx_train
