// What ends a training (--stop-at): "accuracy>=0.94", "loss<=0.1". Plain values; any thread.
#pragma once

#include <string>

namespace onnx_train {

struct StopTarget {
  std::string metric;  // of an evaluation
  bool at_least;       // >=, else <=
  double value;

  bool reached(double found) const { return at_least ? found >= value : found <= value; }  // never by NaN
};

// Throws Error that names the column.
StopTarget parse_stop_target(const std::string& text);
void check_stop_target(const std::string& text);  // the same as a check of an option

}  // namespace onnx_train
