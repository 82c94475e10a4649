#include "tools/run_report/text_chart.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/ir/error.h"
#include "runtime/support/report_text.h"

namespace onnx_train {
namespace {

// Dots by column and row, from the upper left corner.
class Dots {
 public:
  Dots(size_t columns, size_t rows) : columns_(columns), cells_(columns * rows) {}

  void set(size_t x, size_t y, size_t curve) {
    // The bits of a character of Unicode's block of braille patterns.
    constexpr unsigned char kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    Cell& cell = cells_[y / 4 * columns_ + x / 2];
    cell.bits |= kBits[y % 4][x % 2];
    cell.curve = curve;
  }
  void mark(size_t x, size_t y, size_t curve) { cells_[y / 4 * columns_ + x / 2] = {0, curve, true}; }

  std::string line(size_t row, const std::vector<TextCurve>& curves) const {
    std::string text, colour;
    for (size_t x = 0; x < columns_; ++x) {
      const Cell& cell = cells_[row * columns_ + x];
      const bool drawn = cell.marked || cell.bits != 0;
      if (drawn && curves[cell.curve].colour != colour) {
        colour = curves[cell.curve].colour;
        text += concat("\x1b[", colour.empty() ? "0" : colour, "m");
      }
      if (cell.marked) {
        text += 'o';
        continue;
      }
      text += '\xe2';  // U+2800 and what follows
      text += static_cast<char>(0xa0 | (cell.bits >> 6));
      text += static_cast<char>(0x80 | (cell.bits & 0x3fU));
    }
    return colour.empty() ? text : text + "\x1b[0m";
  }

 private:
  struct Cell {
    unsigned char bits = 0;
    size_t curve = 0;  // the last one that was drawn here
    bool marked = false;
  };
  size_t columns_;
  std::vector<Cell> cells_;
};

std::string right_aligned(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string edge_text(double value) { return value >= 1e3 ? format_count(value) : format_number(value); }

// What the edges of a chart stand for.
struct Frame {
  double first = INFINITY, last = -INFINITY, low = INFINITY, high = -INFINITY;
  bool log = false;
  size_t across = 0, down = 0;  // dots

  double scale(double y) const { return log ? std::log(y) : y; }
  size_t x(double step) const {
    const double share = last > first ? (step - first) / (last - first) : 0;
    return std::min(static_cast<size_t>(share * static_cast<double>(across)), across - 1);
  }
  size_t y(double value) const {
    const double span = scale(high) - scale(low), height = span > 0 ? (scale(value) - scale(low)) / span : 0.5;
    return static_cast<size_t>(std::lround((1 - std::clamp(height, 0.0, 1.0)) * static_cast<double>(down - 1)));
  }
};

// Straight lines between neighbouring values that are finite.
void draw(const TextCurve& curve, size_t index, const Frame& frame, Dots* dots) {
  const Series& series = curve.series;
  std::vector<std::pair<size_t, size_t>> reach(frame.across,
                                               {frame.down, 0});  // of each column: its highest, lowest dot
  const auto extend = [&](size_t x, size_t y) {
    reach[x] = {std::min(reach[x].first, y), std::max(reach[x].second, y)};
  };
  bool pen = false;
  size_t finite = 0, before_x = 0, before_y = 0;
  for (size_t i = 0; i < series.size(); ++i) {
    if (!std::isfinite(series.y[i])) {
      pen = false;
      continue;
    }
    const size_t x = frame.x(series.x[i]), y = frame.y(series.y[i]);
    // Each column begins beside the dot where the one before it ends.
    size_t last = before_y;
    for (size_t at = before_x + 1; pen && at <= x; ++at) {
      const double share = static_cast<double>(at - before_x) / static_cast<double>(x - before_x);
      const double height = static_cast<double>(before_y) * (1 - share) + static_cast<double>(y) * share;
      const auto now = static_cast<size_t>(std::lround(height));
      extend(at, now > last ? last + 1 : now < last ? last - 1 : now);
      extend(at, now);
      last = now;
    }
    extend(x, y);
    pen = true;
    ++finite;
    before_x = x;
    before_y = y;
  }
  for (size_t x = 0; x < frame.across; ++x) {
    for (size_t y = reach[x].first; y <= reach[x].second && y < frame.down; ++y) dots->set(x, y, index);
  }
  if (!curve.marks || finite > frame.across / 8) return;
  for (size_t i = 0; i < series.size(); ++i) {
    if (std::isfinite(series.y[i])) dots->mark(frame.x(series.x[i]), frame.y(series.y[i]), index);
  }
}

std::string title_line(const std::string& title, const std::vector<TextCurve>& curves, size_t width) {
  std::string line = shorten(title, width);
  size_t columns = text_columns(line);
  for (const TextCurve& curve : curves) {
    if (curve.name.empty() || columns + 2 + text_columns(curve.name) > width) continue;
    line += "  " + in_colour(curve.name, curve.colour);
    columns += 2 + text_columns(curve.name);
  }
  return line;
}

}  // namespace

std::string in_colour(const std::string& text, const std::string& colour) {
  return colour.empty() ? text : concat("\x1b[", colour, "m", text, "\x1b[0m");
}

std::vector<std::string> chart_lines(const std::string& title, const std::vector<TextCurve>& curves, size_t width,
                                     size_t rows) {
  Frame frame;
  for (const TextCurve& curve : curves) {
    for (size_t i = 0; i < curve.series.size(); ++i) {
      frame.first = std::min(frame.first, curve.series.x[i]);
      frame.last = std::max(frame.last, curve.series.x[i]);
      const double y = curve.series.y[i];
      if (!std::isfinite(y)) continue;
      frame.low = std::min(frame.low, y);
      frame.high = std::max(frame.high, y);
    }
  }
  if (frame.low > frame.high || rows == 0) return {};
  // Means of equal numbers differ in their last digits.
  if (frame.high - frame.low <= 1e-9 * std::max(std::abs(frame.high), std::abs(frame.low))) frame.low = frame.high;
  const std::string top = edge_text(frame.high), bottom = edge_text(frame.low);
  const size_t margin = std::max(top.size(), bottom.size()) + 1;
  if (width < margin + 8) return {};
  const size_t columns = width - margin;
  frame.across = 2 * columns;
  frame.down = 4 * rows;
  frame.log = frame.low > 0 && frame.high / frame.low > 100;
  Dots dots(columns, rows);
  for (size_t i = 0; i < curves.size(); ++i) draw(curves[i], i, frame, &dots);
  const std::string indent(margin, ' ');
  std::vector<std::string> lines = {indent + title_line(title + (frame.log ? " (log)" : ""), curves, columns)};
  for (size_t row = 0; row < rows; ++row) {
    const bool level = frame.low == frame.high;
    const std::string label = level ? (row == rows / 2 ? top : "") : row == 0 ? top : row + 1 == rows ? bottom : "";
    lines.push_back(concat(right_aligned(label, margin - 1), " ", dots.line(row, curves)));
  }
  const std::string first = concat("step ", static_cast<int64_t>(frame.first)),
                    last = std::to_string(static_cast<int64_t>(frame.last));
  const bool both = columns > first.size() + last.size();
  lines.push_back(indent + (both ? concat(first, std::string(columns - first.size() - last.size(), ' '), last)
                                 : shorten(last, columns)));
  return lines;
}

std::string text_chart(const std::string& title, const Series& series, size_t width, size_t rows) {
  std::string text;
  for (const std::string& line : chart_lines(title, {{"", series, "", false}}, width, rows)) text += line + "\n";
  return text;
}

}  // namespace onnx_train
