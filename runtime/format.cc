#include "runtime/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

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

// Columns that a UTF-8 text takes on a terminal, as long as it holds no wide characters.
size_t width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
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

std::string wrap(const std::string& text, size_t columns, size_t indent) {
  constexpr size_t kLeast = 30;
  const size_t room = std::max(columns > indent ? columns - indent : 0, kLeast);
  std::string result(indent, ' '), line;
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find(' ', start), text.size());
    const std::string word = text.substr(start, end - start);
    if (!line.empty() && width(line) + 1 + width(word) > room) {
      result += line + "\n" + std::string(indent, ' ');
      line.clear();
    }
    line += line.empty() ? word : " " + word;
    start = end + 1;
  }
  return result + line;
}

std::string TextTable::text(int indent, size_t columns) const {
  std::vector<size_t> widths(alignment_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line(static_cast<size_t>(indent), ' ');
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      if (alignment_[i] == 'w') {
        if (columns > 0)
          line += wrap(row[i], columns, width(line)).substr(width(line));
        else
          line += row[i];
        continue;
      }
      const std::string padding(widths[i] - width(row[i]), ' ');
      line += alignment_[i] == 'r' ? padding + row[i] : row[i] + padding;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace onnx_train
