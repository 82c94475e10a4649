#include "tools/run_report/text_chart.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/ir/error.h"
#include "runtime/report_text.h"

namespace onnx_train {
namespace {

// Dots by column and row, from the upper left corner.
class Dots {
 public:
  Dots(size_t columns, size_t rows) : columns_(columns), bits_(columns * rows) {}

  void set(size_t x, size_t y) {
    // The bits of a character of Unicode's block of braille patterns.
    constexpr unsigned char kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    bits_[y / 4 * columns_ + x / 2] |= kBits[y % 4][x % 2];
  }
  std::string line(size_t row) const {
    std::string text;
    for (size_t x = 0; x < columns_; ++x) {
      const unsigned bits = bits_[row * columns_ + x];  // U+2800 and what follows
      text += '\xe2';
      text += static_cast<char>(0xa0 | (bits >> 6));
      text += static_cast<char>(0x80 | (bits & 0x3fU));
    }
    return text;
  }

 private:
  size_t columns_;
  std::vector<unsigned char> bits_;
};

std::string right_aligned(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

}  // namespace

std::string text_chart(const std::string& title, const Series& series, size_t width, size_t rows) {
  double low = INFINITY, high = -INFINITY;
  for (double y : series.y) {
    if (!std::isfinite(y)) continue;
    low = std::min(low, y);
    high = std::max(high, y);
  }
  if (low > high || rows == 0) return "";
  const std::string top = format_number(high), bottom = format_number(low);
  const size_t margin = std::max(top.size(), bottom.size()) + 1;
  if (width < margin + 8) return "";
  const size_t columns = width - margin, across = 2 * columns, down = 4 * rows;
  const bool log = low > 0 && high / low > 100;
  const auto scale = [&](double y) { return log ? std::log(y) : y; };
  const double span = scale(high) - scale(low), length = series.x.back() - series.x.front();
  Dots dots(columns, rows);
  std::vector<std::pair<size_t, size_t>> reach(across, {down, 0});  // of each column: its highest and lowest dot
  for (size_t i = 0; i < series.size(); ++i) {
    if (!std::isfinite(series.y[i])) continue;
    const double share = length > 0 ? (series.x[i] - series.x.front()) / length : 0;
    const double height = span > 0 ? (scale(series.y[i]) - scale(low)) / span : 0.5;
    const auto x = std::min(static_cast<size_t>(share * static_cast<double>(across)), across - 1);
    const auto y = static_cast<size_t>(std::lround((1 - std::clamp(height, 0.0, 1.0)) * static_cast<double>(down - 1)));
    reach[x] = {std::min(reach[x].first, y), std::max(reach[x].second, y)};
  }
  for (size_t x = 0; x < across; ++x) {
    for (size_t y = reach[x].first; y <= reach[x].second && y < down; ++y) dots.set(x, y);
  }
  std::string text = concat(right_aligned("", margin), title, log ? " (log)" : "", "\n");
  for (size_t row = 0; row < rows; ++row) {
    const std::string label = row == 0 ? top : row + 1 == rows ? bottom : "";
    text += concat(right_aligned(label, margin - 1), " ", dots.line(row), "\n");
  }
  const std::string first = concat("step ", static_cast<int64_t>(series.x.front())),
                    last = std::to_string(static_cast<int64_t>(series.x.back()));
  const size_t gap = columns > first.size() + last.size() ? columns - first.size() - last.size() : 1;
  return concat(text, std::string(margin, ' '), first, std::string(gap, ' '), last, "\n");
}

}  // namespace onnx_train
