// The texts of reports: numbers as people read them, lines that fit a terminal, and aligned tables. Pure functions and
// values; any thread.
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

// Columns of text that goes to a file or a pipe, unless COLUMNS says otherwise.
constexpr size_t kPlainWidth = 100;

// Columns that a UTF-8 text takes on a terminal, as long as it holds no wide characters.
size_t text_columns(const std::string& text);

// At most `columns` columns of `text`: its beginning, an ellipsis, and its end, which tells most names apart.
std::string shorten(const std::string& text, size_t columns);

// `text` with line ends in the place of spaces, so that no line is wider than `width` columns; only a word that is
// wider stays as it is. The first line starts with `indent` spaces, the others with `hanging` more. An option and its
// value
// ("--batch dynamic") stay on one line. Width 0: one line.
std::string wrap(const std::string& text, size_t width, size_t indent, size_t hanging = 0);

// `text` as an argument of a shell command: in single quotes unless it needs none.
std::string shell_quoted(const std::string& text);

// Wraps a shell command, with a backslash before each line end so that it can be copied. What is in single quotes stays
// together. Four columns of hanging indentation.
std::string wrap_command(const std::string& command, size_t width, size_t indent);

// Rows of cells in columns, two spaces apart. What is wider than the terminal is laid out in the first of these ways
// that fits: 'w' columns are folded at spaces; 'l' columns, too; the cells of a row follow each other over several
// lines.
class TextTable {
 public:
  // One character a column: 'l', or 'r' for a column of numbers, which are aligned at their right and never folded; 'w'
  // for texts to fold. A word that is wider than its column is shortened. Fewer cells than columns leave the rest
  // empty.
  explicit TextTable(std::string alignment) : alignment_(std::move(alignment)) {}
  void add(std::vector<std::string> cells);
  // Lines that start with `indent` spaces and end in a newline, of at most `width` columns; 0: each row is one line.
  std::string text(size_t indent = 2, size_t width = 0) const;

 private:
  std::vector<size_t> widths(size_t room) const;  // empty: there is no room for columns
  std::string line(const std::vector<std::string>& row, const std::vector<size_t>& widths, size_t indent) const;

  std::string alignment_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace onnx_train
