#include <chrono>
#include <exception>
#include <filesystem>
#include <new>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/flatten.h"
#include "onnx_passes/model/pass.h"

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

// Returns the path of the files without their endings.
std::string dump(const Model& model, const std::string& folder, size_t number, const std::string& pass) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(folder, ": ", error.message());
  const std::string base = concat(folder, '/', number < 10 ? "0" : "", number, '_', pass);
  save_model(model, base + ".onnx");
  write_file(base + ".txt", to_text(model));
  return base;
}

void remove_dump(const std::string& base) {
  std::error_code error;
  for (const char* ending : {".onnx", ".txt", ".onnx.data"}) std::filesystem::remove(base + ending, error);
}

// Runs the pass; an error says how it runs alone, on the dump `before` it.
bool run_on_dump(const Pass& pass, Model* model, const std::string& before) {
  const auto alone = [&](const std::string& what) {
    return concat(what, "; the pass alone: onnx-train opt ", before, ".onnx -o after.onnx --passes ", pass.name,
                  ", with the options of this command");
  };
  try {
    return pass.run(*model);
  } catch (const Error& error) {
    throw Error(alone(error.what()), error.code());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(alone(concat("[", pass.name, "] ", error.what())));
  }
}

}  // namespace

std::vector<PassTiming> run_pipeline(const std::vector<Pass>& passes, Model* model, const PipelineOptions& options) {
  using Clock = std::chrono::steady_clock;
  std::vector<PassTiming> timings;
  const bool dumps = !options.dump_dir.empty() && !passes.empty();
  std::string before = dumps ? dump(*model, options.dump_dir, 0, "input") : "";
  for (const Pass& pass : passes) {
    const size_t nodes = model->graph->num_nodes();
    const auto start = Clock::now();
    const bool changed = dumps ? run_on_dump(pass, model, before) : pass.run(*model);
    const std::chrono::duration<double, std::milli> elapsed = Clock::now() - start;
    timings.push_back(
        {pass.name, pass.phase, elapsed.count(), changed, nodes, model->graph->num_nodes(), pass.numbers});
    if (dumps) {
      const std::string after = dump(*model, options.dump_dir, timings.size(), pass.name);
      if (timings.size() == 1) remove_dump(before);  // it is there for a fault of the first pass
      before = after;
    }
    if (options.verify) verify(*model, pass.name);
  }
  return timings;
}

}  // namespace onnx_train
