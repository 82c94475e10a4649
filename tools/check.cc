#include <cstdio>

#include "onnx_passes/ir/error.h"
#include "runtime/models/check_report.h"
#include "tools/report/output.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct CheckArguments {
  std::string model;
  CheckSettings settings;
};

int run(const CheckArguments& arguments) {
  const CheckReport report = check_model(arguments.model, arguments.settings);
  std::printf("%s", to_text(report, arguments.model, text_width(), table_width()).c_str());
  if (!report.can_be_trained()) fail_as(report.code, report.failure);
  return 0;
}

}  // namespace

Subcommand check_command() {
  auto a = std::make_shared<CheckArguments>();
  std::vector<CommandOption> options = check_options(&a->settings);
  options.insert(options.begin(), {"MODEL", &a->model, "the forward model", "FILE", true});
  return {"check", "What a model is, whether it can be trained, and everything that is in the way",
          "  onnx-train check model.onnx\n"
          "  onnx-train check model.onnx --freeze 'embeddings.*'",
          std::move(options), [a] { return run(*a); }};
}

}  // namespace onnx_train
