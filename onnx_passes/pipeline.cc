#include <chrono>
#include <filesystem>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/pass.h"
#include "onnx_passes/passes.h"

namespace onnx_train {
namespace {

void verify_entry(const Model& model, const std::string& entry, const std::string& pass) {
  try {
    onnx::ModelProto proto;
    to_proto(flatten(model, entry), &proto);
    check_proto(proto);
  } catch (const Error& error) {
    fail("[", pass, "] entry point '", entry, "' is not valid after this pass: ", error.what());
  }
}

void verify(const Model& model, const std::string& pass) {
  verify_entry(model, "predict", pass);
  bool initializes = false;
  for (const EntryPoint& entry : model.entry_points) {
    verify_entry(model, entry.name(), pass);
    initializes = initializes || !entry.initialization_bindings.empty();
  }
  if (initializes) verify_entry(model, "initialize", pass);
}

void dump(const Model& model, const std::string& folder, size_t number, const std::string& pass) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(folder, ": ", error.message());
  const std::string base = concat(folder, '/', number < 10 ? "0" : "", number, '_', pass);
  save_model(model, base + ".onnx");
  write_file(base + ".txt", to_text(model));
}

}  // namespace

std::vector<PassTiming> run_pipeline(const std::vector<Pass>& passes, Model* model, const PipelineOptions& options) {
  using Clock = std::chrono::steady_clock;
  std::vector<PassTiming> timings;
  for (const Pass& pass : passes) {
    const size_t nodes = model->graph->num_nodes();
    const auto start = Clock::now();
    const bool changed = pass.run(*model);
    const std::chrono::duration<double, std::milli> elapsed = Clock::now() - start;
    timings.push_back(
        {pass.name, pass.phase, elapsed.count(), changed, nodes, model->graph->num_nodes(), pass.numbers});
    if (!options.dump_dir.empty()) dump(*model, options.dump_dir, timings.size(), pass.name);
    if (options.verify) verify(*model, pass.name);
  }
  return timings;
}

}  // namespace onnx_train
