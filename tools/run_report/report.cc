#include "runtime/support/report_text.h"
#include "tools/report/output.h"
#include "tools/run_report/report_page.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  std::string output;
};

int run(const ReportArguments& arguments) {
  std::string output = arguments.output;
  if (output.empty() && arguments.runs.size() > 1) throw UsageError("report of several runs needs -o FILE");
  if (output.empty()) output = arguments.runs[0] + "/report.html";
  write_report(arguments.runs, output);
  print(output + "\n");
  return 0;
}

}  // namespace

void expect_reports(const std::string&) {}

Subcommand report_command() {
  auto a = std::make_shared<ReportArguments>();
  return {"report",
          "Write one HTML file that shows a run, or compares several: curves, memory, options",
          "  onnx-train report run\n"
          "  onnx-train report runs/adamw runs/sgd runs/lion -o compared.html\n"
          "With the slowest nodes:\n"
          "  onnx-train bench train.onnx --data train.npz --profile --json > run/profile.json",
          {{"RUN", &a->runs, "folders of runs, the --out of fit", "DIR", true},
           {"-o,--output", {&a->output, file_with(".html")}, "the file to write, .html [RUN/report.html]", "FILE"}},
          [a] { return run(*a); }};
}

}  // namespace onnx_train
