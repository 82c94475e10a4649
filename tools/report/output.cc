#include "tools/report/output.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>

#include "onnx_passes/ir/error.h"
#include "platform/terminal.h"
#include "runtime/support/report_text.h"

namespace onnx_train {
namespace {

using platform::kStandardError;
using platform::kStandardOutput;

constexpr const char* kClearLine = "\r\x1b[K";

struct Writer {
  std::mutex mutex;
  bool status = false;                            // a status line is shown, and the cursor is at its end
  bool holds = false;                             // all that is printed waits
  int rank = 0;                                   // above 0, errors alone are printed
  std::vector<std::pair<int, std::string>> held;  // descriptor and text
};

Writer& writer() {
  static Writer writer;
  return writer;
}

bool write_all(int descriptor, const std::string& text) {
  return platform::write_all(descriptor, text.data(), text.size());
}

// What std::printf holds comes first. If its buffer was full before, an error was then, and the flush has none.
void write_out(const std::string& text) {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !write_all(kStandardOutput, text)) {
    fail("cannot write to standard output: ", std::strerror(errno));
  }
}

}  // namespace

void speak_as_rank(int rank) {
  const std::lock_guard lock(writer().mutex);
  writer().rank = rank;
}

void print(const std::string& text) {
  const std::lock_guard lock(writer().mutex);
  if (writer().rank > 0) return;
  if (writer().holds) {
    writer().held.emplace_back(kStandardOutput, text);
    return;
  }
  write_out((writer().status ? kClearLine : "") + text);
  writer().status = false;
}

void print_error(const std::string& line) {
  const std::lock_guard lock(writer().mutex);
  std::string text = writer().rank > 0 ? concat("rank ", writer().rank, ": ", line) : line;
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  if (writer().holds) {
    writer().held.emplace_back(kStandardError, text + "\n");
    return;
  }
  std::fflush(stdout);
  if (writer().status) write_all(kStandardOutput, "\n");
  writer().status = false;
  write_all(kStandardError, text + "\n");  // there is nowhere left to say that this fails
}

void print_notes(const std::vector<std::string>& notes) {
  {
    const std::lock_guard lock(writer().mutex);
    if (writer().rank > 0) return;
  }
  for (const std::string& note : notes) print_error(concat("onnx-train: note: ", note));
}

void show_status(const std::string& text) {
  const std::lock_guard lock(writer().mutex);
  if (writer().holds) return;
  write_out(kClearLine + text);
  writer().status = true;
}

void hold_output() {
  const std::lock_guard lock(writer().mutex);
  if (writer().status) write_out("\n");
  writer().status = false;
  writer().holds = true;
}

std::vector<std::string> held_output(size_t lines) {
  const std::lock_guard lock(writer().mutex);
  std::vector<std::string> last;
  const auto& held = writer().held;
  for (size_t i = held.size() - std::min(held.size(), lines); i < held.size(); ++i) {
    std::istringstream text(held[i].second);
    for (std::string line; std::getline(text, line);) last.push_back(line);
  }
  if (last.size() > lines) last.erase(last.begin(), last.end() - static_cast<std::ptrdiff_t>(lines));
  return last;
}

void release_output() {
  const std::lock_guard lock(writer().mutex);
  writer().holds = false;
  const auto held = std::exchange(writer().held, {});
  std::fflush(stdout);
  for (const auto& [descriptor, text] : held) write_all(descriptor, text);  // a later print says if that fails
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

bool is_terminal() { return platform::is_terminal(kStandardOutput); }

size_t table_width() {
  constexpr size_t kLeast = 20;
  if (const char* columns = std::getenv("COLUMNS")) {
    const long asked = std::strtol(columns, nullptr, 10);
    if (asked > 0) return std::max(static_cast<size_t>(asked), kLeast);
  }
  const auto size = is_terminal() ? platform::terminal_size() : std::nullopt;
  if (!size) return 0;
  return size->columns > 0 ? std::max(size->columns, kLeast) : kPlainWidth;
}

size_t text_width() {
  const size_t width = table_width();
  return width > 0 ? width : kPlainWidth;
}

}  // namespace onnx_train
