#include "runtime/training/stop_target.h"

#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"
#include "runtime/support/options.h"

namespace onnx_train {

StopTarget parse_stop_target(const std::string& text) {
  ExpressionReader reader("--stop-at", text);
  StopTarget target;
  target.metric = reader.word("a metric, as in accuracy>=0.94").text;
  target.at_least = reader.at('>');
  if (!target.at_least && !reader.at('<')) reader.fail_at(reader.column(), "expected >= or <=");
  reader.take(target.at_least ? '>' : '<');
  reader.expect('=', "before the number");
  target.value = reader.number();
  if (!reader.at_end()) reader.fail_at(reader.column(), "expected the end");
  return target;
}

void check_stop_target(const std::string& text) {
  try {
    parse_stop_target(text);
  } catch (const Error& error) {
    throw UsageError(error.what(), error.code());
  }
}

}  // namespace onnx_train
