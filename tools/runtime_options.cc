#include "tools/runtime_options.h"

#include <sstream>

namespace onnx_train {

std::vector<CommandOption> with_runtime_options(std::vector<CommandOption> options, RuntimeOptions* runtime) {
  options.insert(
      options.end(),
      {{"--threads", &runtime->threads, "threads [all cores]", "N"},
       {"--lowering", &runtime->lowering, "-NAME,...: plan without these lowering passes (docs/lowering.md)", "-NAME"},
       {"--no-lowering", &runtime->no_lowering, "plan with none but the passes that every plan needs"},
       {"--dump-lowering", &runtime->dump_folder, "write the graph after each lowering pass, as .onnx and .txt",
        "DIR"}});
  return options;
}

SessionOptions session_options(const RuntimeOptions& runtime) {
  if (runtime.threads > 0) set_num_threads(static_cast<int>(runtime.threads));
  SessionOptions options;
  options.plan.lowering.on = !runtime.no_lowering;
  options.plan.pipeline.dump_dir = runtime.dump_folder;
  std::istringstream names(runtime.lowering);
  for (std::string name; std::getline(names, name, ',');) {
    if (name.size() < 2 || name[0] != '-') {
      throw UsageError("--lowering takes the passes to leave out, -NAME or -NAME,-NAME, not '" + runtime.lowering +
                       "'");
    }
    options.plan.lowering.without.push_back(name.substr(1));
  }
  return options;
}

}  // namespace onnx_train
