#include "tools/runtime_options.h"

#include "kernels/host.h"
#include "onnx_passes/ir/entry.h"

namespace onnx_train {

CommandOption dtype_option(std::string* dtype) {
  return {"--dtype", dtype, "float64 computes in double precision [float32]", "TYPE", false, {"float32", "float64"}};
}

CommandOption links_option(std::string* folder) {
  return {"--allow-links", folder, "the model's data files may be links that lead into this folder", "DIR"};
}

CommandOption base_option(std::string* file) {
  return {"--base-model", file,
          "where the frozen weights of a checkpoint are, if they are no longer where its run had them", "FILE|DIR"};
}

std::vector<std::string> entry_names() {
  std::vector<std::string> names;
  for (const Entry entry : kEntries) names.emplace_back(name_of(entry));
  return names;
}

std::vector<CommandOption> with_session_options(std::vector<CommandOption> options, SessionSettings* settings,
                                                DataOptions* reading, SampleOptions* samples) {
  if (reading) options = joined(std::move(options), data_options(reading));
  if (samples) options = joined(std::move(options), sample_options(samples));
  return joined(std::move(options), taken_by(TakenBy::kCommand, session_options(settings)));
}

SessionOptions options_of_session(const SessionSettings& settings) {
  set_num_threads(settings.threads > 0 ? static_cast<int>(settings.threads) : default_threads());
  SessionOptions options = resolve(settings);
  options.refuse_non_finite_loss = false;
  return options;
}

}  // namespace onnx_train
