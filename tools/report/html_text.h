// Text as HTML holds it. A pure function; any thread.
#pragma once

#include <string>

namespace onnx_train {

// As text and attributes of HTML hold it. Bytes that are no UTF-8, and control characters, become U+FFFD.
std::string escaped(const std::string& text);

}  // namespace onnx_train
