// Numbers as people read them, and aligned tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onnx_train {

std::string format_bytes(double bytes);       // "812 B", "3.4 MiB"
std::string format_count(double count);       // "812", "3.4k", "124.4M"
std::string format_duration(double seconds);  // "0:07", "12:30", "1:02:03"
std::string format_number(double value);      // four significant digits: "0.3127", "1.000e-05"; "nan", "inf", "-inf"
std::string format_percent(double fraction);  // "97.5%"
std::string format_exact(double value);       // nine significant digits, which tell any two float32 apart

// `text` with line ends in the place of spaces, so that lines are at most `width` columns wide where their words allow
// it; each line starts with `indent` spaces. Lines of at least 30 columns of text, however narrow the terminal.
std::string wrap(const std::string& text, size_t width, size_t indent);

// Columns two spaces apart, each as wide as its widest cell; cells of a column marked right are aligned there.
class TextTable {
 public:
  // One character a column: 'l' or 'r', or 'w' for a last column whose texts are wrapped to a terminal's width. Fewer
  // cells than columns leave the rest empty.
  explicit TextTable(std::string alignment) : alignment_(std::move(alignment)) {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Lines that start with `indent` spaces and end in a newline; nothing is wrapped where `width` is 0.
  std::string text(int indent = 2, size_t width = 0) const;

 private:
  std::string alignment_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace onnx_train
