#include "tools/run_report/last_step.h"

#include <cmath>
#include <vector>

#include "onnx_passes/ir/error.h"
#include "runtime/support/report_text.h"

namespace onnx_train {

std::string last_step_line(const RunFiles& run, size_t width) {
  const auto value = [&](const char* name) {
    const auto* column = run.steps.column(name);
    return column && !column->empty() ? column->back() : std::nan("");
  };
  if (run.steps.rows() == 0) return "no step yet";
  const std::string total = run.derived("steps");
  std::vector<std::string> parts = {
      concat("step ", static_cast<int64_t>(value("step")), total.empty() ? "" : "/" + total),
      concat("epoch ", static_cast<int64_t>(value("epoch"))), concat("loss ", format_number(value("loss")))};
  if (const double accuracy = value("accuracy"); !std::isnan(accuracy)) {
    parts.push_back("accuracy " + format_percent(accuracy));
  }
  for (const auto& [key, series] : run.evaluations) {
    if (key.starts_with("eval_") && series.size() > 0) {
      parts.push_back(concat("eval ", key.substr(5), " ", format_number(series.y.back())));
    }
  }
  parts.push_back("|grad| " + format_number(value("grad_norm")));
  parts.push_back("lr " + format_number(value("lr")));
  parts.push_back(format_number(value("ms")) + " ms");
  std::string line;
  for (const std::string& part : parts) {
    const std::string longer = line.empty() ? part : concat(line, "  ", part);
    if (width > 0 && text_columns(longer) > width) break;
    line = longer;
  }
  return line;
}

}  // namespace onnx_train
