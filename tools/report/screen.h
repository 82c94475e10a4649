// The whole terminal, for as long as this lives: lines at fixed places, keys without Enter. Whatever the terminal
// showed before is there again afterwards, also when a signal ends the process. It writes ANSI escape sequences; plots
// are text_chart.h's. While it is open, what print() is given waits (output.h). One at a time; one thread.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace onnx_train {

class Screen {
 public:
  // Whether stdin and stdout are a terminal that understands more than lines, and this process is in its foreground.
  static bool is_possible();

  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  struct Size {
    size_t columns = 80, rows = 24;
    bool operator==(const Size&) const = default;
  };
  Size size() const;

  // Shows the lines from the top, none wider than the terminal. Only lines that have changed are written.
  void draw(const std::vector<std::string>& lines);

  // The next key that is pressed within `time`; '\0' if there is none.
  char key(std::chrono::milliseconds time);

 private:
  std::vector<std::string> shown_;
  Size size_;
};

// Gives the terminal back if a screen is open. A signal handler may call it.
void restore_terminal();

}  // namespace onnx_train
