#include "runtime/runs/resume.h"
#include "runtime/runs/run_folder.h"
#include "tests/fuzz/harness.h"
#include "tools/config.h"
#include "tools/fit/fit_arguments.h"

namespace onnx_train::fuzz {

void options(Input input) {
  const std::string json = file_of(input, "options.json"), yaml = file_of(input, "options.yaml");
  for (const std::string& path : {json, yaml}) {
    FitArguments arguments;
    std::set<std::string> given;
    try_to([&] {
      read_config(path, fit_options(&arguments), &given);
      check_usage(&arguments);
    });
  }
  try_to([&] {
    recorded_text(folder(), "time-limit");
    recorded_count(folder(), "epochs");
    checked_data(folder());
  });
}

}  // namespace onnx_train::fuzz
