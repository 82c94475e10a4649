#include "runtime/support/report_text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>

namespace onnx_train {
namespace {

template <typename... Args>
std::string print(const char* format, Args... args) {
  char text[64];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

// "nan", "inf" or "-inf" for what is not finite, else nothing: the C library prints the sign of a nan, which is no
// number's.
const char* not_finite(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return nullptr;
}

bool starts_character(char c) { return (c & 0xc0) != 0x80; }

// A word and the spaces before it.
struct Word {
  std::string text;
  size_t spaces;
};

// The words of a text, or of a shell command, where quotes hold a word together.
std::vector<Word> words_of(const std::string& text, bool is_command) {
  std::vector<Word> words;
  for (size_t at = 0; at < text.size();) {
    const size_t start = std::min(text.find_first_not_of(' ', at), text.size());
    size_t end = start;
    for (bool quoted = false; end < text.size() && (quoted || text[end] != ' '); ++end) {
      if (!is_command) continue;
      if (text[end] == '\'') quoted = !quoted;
      if (text[end] == '\\' && !quoted && end + 1 < text.size()) ++end;
    }
    if (end > start) words.push_back({text.substr(start, end - start), start - at});
    at = end;
  }
  return words;
}

// "--batch", "-o"
bool is_option(const std::string& word) {
  const size_t dashes = std::min(word.find_first_not_of('-'), word.size());
  return (dashes == 1 || dashes == 2) && dashes < word.size() && std::isalpha(static_cast<unsigned char>(word[dashes]));
}

// Lines of at most `first` columns, and `rest` from the second one on. An option takes its value to the next line.
// Words that are wider are shortened to `rest`, or have a line of their own.
std::vector<std::string> fold(const std::vector<Word>& words, size_t first, size_t rest, bool shortens) {
  std::vector<std::string> lines(1);
  size_t used = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string text = shortens ? shorten(words[i].text, rest) : words[i].text;
    size_t needed = text_columns(text);
    if (is_option(text) && i + 1 < words.size()) needed += 1 + text_columns(words[i + 1].text);
    if (needed > rest) needed = text_columns(text);
    if (used > 0 && used + words[i].spaces + needed > (lines.size() == 1 ? first : rest)) {
      lines.emplace_back();
      used = 0;
    } else if (used > 0) {
      lines.back().append(words[i].spaces, ' ');
      used += words[i].spaces;
    }
    lines.back() += text;
    used += text_columns(text);
  }
  return lines;
}

std::string joined(const std::vector<std::string>& lines, size_t indent, size_t hanging, const char* end) {
  std::string text(indent, ' ');
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += end + std::string(indent + hanging, ' ');
    text += lines[i];
  }
  return text;
}

constexpr size_t kGap = 2;  // between columns

size_t sum_of(const std::vector<size_t>& widths) {
  const size_t gaps = widths.empty() ? 0 : kGap * (widths.size() - 1);
  return std::accumulate(widths.begin(), widths.end(), gaps);
}

// Gives the columns in `flexible` what the others leave of `room`: narrow ones all they want, the rest equal parts.
// Returns false, and changes nothing, where that is less than `least` for one that wants more.
bool share(size_t room, std::vector<size_t> flexible, size_t least, std::vector<size_t>* widths) {
  std::vector<size_t> shared = *widths;
  for (size_t i : flexible) shared[i] = 0;
  size_t taken = sum_of(shared);
  std::stable_sort(flexible.begin(), flexible.end(), [&](size_t a, size_t b) { return (*widths)[a] < (*widths)[b]; });
  for (size_t k = 0; k < flexible.size(); ++k) {
    const size_t wanted = (*widths)[flexible[k]], part = taken < room ? (room - taken) / (flexible.size() - k) : 0;
    if (part < std::min(wanted, least)) return false;
    shared[flexible[k]] = std::min(wanted, part);
    taken += shared[flexible[k]];
  }
  *widths = std::move(shared);
  return true;
}

// The cells of a row one after the other, where there is no room for columns.
std::string flow(const std::vector<std::string>& row, size_t room, size_t indent) {
  constexpr size_t kHanging = 4;
  std::vector<Word> words;
  for (const std::string& cell : row) {
    std::vector<Word> added = words_of(cell, false);
    if (!added.empty()) added.front().spaces = kGap;
    words.insert(words.end(), added.begin(), added.end());
  }
  const size_t rest = room > kHanging ? room - kHanging : 1;
  return joined(fold(words, room, rest, true), indent, kHanging, "\n") + "\n";
}

}  // namespace

std::string format_bytes(double bytes) {
  if (const char* text = not_finite(bytes)) return text;
  if (bytes < 1024) return print("%.0f B", bytes);
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    bytes /= 1024;
    if (bytes < 1023.95) return print("%.1f %s", bytes, unit);
  }
  return print("%.1f TiB", bytes / 1024);
}

std::string format_count(double count) {
  if (const char* text = not_finite(count)) return text;
  if (count < 1e3) return print("%.0f", count);
  for (const char* unit : {"k", "M", "G"}) {
    count /= 1e3;
    if (count < 999.95) return print("%.1f%s", count, unit);
  }
  return print("%.1fT", count / 1e3);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  const auto s = static_cast<long>(std::lround(seconds));
  if (s < 3600) return print("%ld:%02ld", s / 60, s % 60);
  return print("%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
}

std::string format_number(double value) {
  if (const char* text = not_finite(value)) return text;
  const double size = std::abs(value);
  if (value == 0) return "0";
  if (size >= 1e6 || size < 1e-3) return print("%.3e", value);
  return print("%.4g", value);
}

std::string format_percent(double fraction) {
  if (const char* text = not_finite(fraction)) return text;
  return print("%.1f%%", fraction * 100);
}

std::string format_exact(double value) {
  if (const char* text = not_finite(value)) return text;
  return print("%.9g", value);
}

size_t text_columns(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), starts_character));
}

std::string shorten(const std::string& text, size_t columns) {
  const size_t all = text_columns(text);
  if (all <= columns) return text;
  const size_t kept = columns > 0 ? columns - 1 : 0, front = kept / 2, back = kept - front;
  std::string result;
  size_t character = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (starts_character(text[i])) ++character;  // from 1
    if (character <= front || character > all - back) result += text[i];
    if (character == front + 1 && starts_character(text[i])) result += "\u2026";
  }
  return result;
}

std::string wrap(const std::string& text, size_t width, size_t indent, size_t hanging) {
  if (width == 0) return std::string(indent, ' ') + text;
  constexpr size_t kLeast = 10;  // of text, however narrow the terminal
  const size_t room = std::max(width > indent + hanging ? width - indent - hanging : 0, kLeast);
  return joined(fold(words_of(text, false), room + hanging, room, false), indent, hanging, "\n");
}

std::string shell_quoted(const std::string& text) {
  const auto is_plain = [](unsigned char c) { return std::isalnum(c) || std::strchr("_-+=./,:@%", c); };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return text;
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string wrap_command(const std::string& command, size_t width, size_t indent) {
  constexpr size_t kHanging = 4, kLeast = 10;
  const size_t taken = indent + kHanging + 2;  // and the backslash
  if (width == 0 || indent + text_columns(command) <= width) return std::string(indent, ' ') + command;
  const size_t room = std::max(width > taken ? width - taken : 0, kLeast);
  return joined(fold(words_of(command, true), room + kHanging, room, false), indent, kHanging, " \\\n");
}

void TextTable::add(std::vector<std::string> cells) {
  // A name from a file may hold anything.
  for (std::string& cell : cells) {
    std::replace_if(
        cell.begin(), cell.end(), [](char c) { return std::iscntrl(static_cast<unsigned char>(c)); }, ' ');
  }
  rows_.push_back(std::move(cells));
}

std::vector<size_t> TextTable::widths(size_t room) const {
  std::vector<size_t> widths(alignment_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) widths[i] = std::max(widths[i], text_columns(row[i]));
  }
  if (room == 0 || sum_of(widths) <= room) return widths;
  const auto columns = [&](const char* kinds) {
    std::vector<size_t> found;
    for (size_t i = 0; i < alignment_.size(); ++i) {
      if (std::strchr(kinds, alignment_[i])) found.push_back(i);
    }
    return found;
  };
  constexpr size_t kReadable = 16, kLeast = 8;  // columns of folded text
  if (share(room, columns("w"), kReadable, &widths) && sum_of(widths) <= room) return widths;
  if (share(room, columns("wl"), kLeast, &widths) && sum_of(widths) <= room) return widths;
  return {};
}

std::string TextTable::line(const std::vector<std::string>& row, const std::vector<size_t>& widths,
                            size_t indent) const {
  std::vector<std::vector<std::string>> cells;
  size_t height = 1;
  for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
    cells.push_back(text_columns(row[i]) <= widths[i] ? std::vector{row[i]}
                                                      : fold(words_of(row[i], false), widths[i], widths[i], true));
    height = std::max(height, cells.back().size());
  }
  std::string text;
  for (size_t k = 0; k < height; ++k) {
    std::string line(indent, ' ');
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string cell = k < cells[i].size() ? cells[i][k] : "";
      const std::string padding(widths[i] - text_columns(cell), ' ');
      line += (alignment_[i] == 'r' ? padding + cell : cell + padding) + std::string(kGap, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string TextTable::text(size_t indent, size_t width) const {
  const size_t room = width == 0 ? 0 : std::max(width, indent + 1) - indent;
  const std::vector<size_t> columns = widths(room);
  std::string text;
  for (const auto& row : rows_) text += columns.empty() ? flow(row, room, indent) : line(row, columns, indent);
  return text;
}

}  // namespace onnx_train
