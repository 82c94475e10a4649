// A curve as text, in dots of braille. A pure function; any thread.
#pragma once

#include <cstddef>
#include <string>

#include "tools/run_report/series.h"

namespace onnx_train {

// Lines of at most `width` columns, `rows` of them with dots: two by four in a character. Values at the left are those
// of the upper and the lower edge, on a logarithmic scale where all are positive and spread over more than a
// hundredfold.
// "" if nothing is finite, or if there is no room.
std::string text_chart(const std::string& title, const Series& series, size_t width, size_t rows);

}  // namespace onnx_train
