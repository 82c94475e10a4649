// In the place of dashboard/, run_report/, sweep/ and tensorboard/, in a build with ONNX_TRAIN_MINIMAL: the commands
// are there and say so.
#include "onnx_passes/ir/error.h"
#include "tools/dashboard/run_view.h"
#include "tools/report/tensorboard_log.h"
#include "tools/run_report/report_page.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

std::string missing(const std::string& what) {
  return concat("this build has no ", what, ": it was made with ONNX_TRAIN_MINIMAL");
}

Subcommand without(const std::string& name) {
  Subcommand subcommand{name, missing(name), "", {}, nullptr};
  subcommand.missing = missing(name);
  return subcommand;
}

}  // namespace

Subcommand report_command() { return without("report"); }
Subcommand watch_command() { return without("watch"); }
Subcommand sweep_command() { return without("sweep"); }

void expect_reports(const std::string& option) { throw UsageError(missing(option)); }

void write_report(const std::vector<std::string>&, const std::string&) { fail(missing("reports")); }

RunView::RunView(ViewSettings) {}
RunView::~RunView() = default;

TensorBoardLog::TensorBoardLog(const std::string&, int64_t) { expect_reports("--tensorboard"); }
TensorBoardLog::~TensorBoardLog() = default;
void TensorBoardLog::add(const StepReport&) {}
void TensorBoardLog::add(const EvaluationReport&) {}

}  // namespace onnx_train
