#include "tools/report/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>

#include <sys/ioctl.h>
#include <unistd.h>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr const char* kClearLine = "\r\x1b[K";

struct Writer {
  std::mutex mutex;
  bool status = false;  // a status line is shown, and the cursor is at its end
};

Writer& writer() {
  static Writer writer;
  return writer;
}

// All of `text`, however many writes the descriptor takes for it; false when it cannot be written.
bool write_all(int descriptor, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(descriptor, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

// What std::printf holds comes first.
void write_out(const std::string& text) {
  if (std::fflush(stdout) != 0 || !write_all(STDOUT_FILENO, text)) {
    fail("cannot write to standard output: ", std::strerror(errno));
  }
}

}  // namespace

void print(const std::string& text) {
  const std::lock_guard lock(writer().mutex);
  write_out((writer().status ? kClearLine : "") + text);
  writer().status = false;
}

void print_error(const std::string& line) {
  const std::lock_guard lock(writer().mutex);
  std::string text = line;
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  std::fflush(stdout);
  if (writer().status) write_all(STDOUT_FILENO, "\n");
  writer().status = false;
  write_all(STDERR_FILENO, text + "\n");  // there is nowhere left to say that this fails
}

void show_status(const std::string& text) {
  const std::lock_guard lock(writer().mutex);
  write_out(kClearLine + text);
  writer().status = true;
}

void keep_status() {
  const std::lock_guard lock(writer().mutex);
  if (writer().status) write_out("\n");
  writer().status = false;
}

void flush_output() {
  const std::lock_guard lock(writer().mutex);
  write_out("");
}

bool is_terminal() { return isatty(STDOUT_FILENO) != 0; }

size_t text_width() {
  constexpr size_t kUsual = 80;
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

size_t list_width() { return is_terminal() ? text_width() : 0; }

}  // namespace onnx_train
