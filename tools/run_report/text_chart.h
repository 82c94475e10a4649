// Curves as text, in dots of braille. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/run_report/series.h"

namespace onnx_train {

struct TextCurve {
  std::string name;  // after the title; may be empty
  Series series;
  std::string colour;  // of a terminal, the parameters of an SGR sequence ("36"); "" for none
  bool marks = false;  // an 'o' at each value, as long as there is room between them
};

// `text` in this colour.
std::string in_colour(const std::string& text, const std::string& colour);

// Lines of at most `width` columns: a title, `rows` lines with dots, two by four in a character, and the steps. Values
// at the left are those of the upper and the lower edge, on a logarithmic scale where all are positive and spread over
// more than a hundredfold. A later curve is drawn over those before it. Empty if nothing is finite, or if there is no
// room.
std::vector<std::string> chart_lines(const std::string& title, const std::vector<TextCurve>& curves, size_t width,
                                     size_t rows);

// The same of one curve without colour, as text; "" if there are no lines.
std::string text_chart(const std::string& title, const Series& series, size_t width, size_t rows);

}  // namespace onnx_train
