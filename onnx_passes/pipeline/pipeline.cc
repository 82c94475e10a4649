#include <chrono>
#include <exception>
#include <filesystem>
#include <new>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/flatten.h"
#include "onnx_passes/model/pass.h"
#include "onnx_passes/pipeline/kept_faults.h"

namespace onnx_train {
namespace {

void verify_entry(const Model& model, const EntryName& entry, const PassPlace& pass) {
  try {
    onnx::ModelProto proto;
    to_proto(flatten(model, entry), &proto);
    check_proto(proto);
  } catch (const Error& error) {
    throw PassFault(concat("[", pass.name, "] entry point '", entry, "' is not valid after this pass: ", error.what()),
                    pass);
  }
}

void verify(const Model& model, const PassPlace& pass) {
  verify_entry(model, Entry::kPredict, pass);
  bool initializes = false;
  for (const EntryPoint& entry : model.entry_points) {
    verify_entry(model, entry.name(), pass);
    initializes = initializes || !entry.initialization_bindings.empty();
  }
  if (initializes) verify_entry(model, Entry::kInitialize, pass);
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

size_t bytes_of(const Graph& graph) {
  size_t bytes = 0;
  for (const Value* value : graph.initializers()) {
    if (value->dtype() == DType::kString || value->dtype() == DType::kUndefined) continue;
    bytes += static_cast<size_t>(num_elements(constant_shape(*value))) * size_of(value->dtype());
  }
  return bytes;
}

void keep(const Model& model, const std::string& file) {
  size_t bytes = bytes_of(*model.graph);
  for (const EntryPoint& entry : model.entry_points) bytes += bytes_of(*entry.algorithm);
  if (bytes <= kMostKept) save_model(model, file);
}

// Runs the pass; an error says how it runs alone, on the dump `before` it, if there is one.
bool run_pass(const Pass& pass, const PassPlace& place, Model* model, const std::string& before) {
  const auto alone = [&](const std::string& what) {
    if (before.empty()) return what;
    return concat(what, "; the pass alone: onnx-train opt ", before, ".onnx -o after.onnx --passes ", pass.name,
                  ", with the options of this command");
  };
  const auto named = [&](const std::exception& error) {
    const std::string what = error.what();
    return what.starts_with("[") ? what : concat("[", pass.name, "] ", what);
  };
  try {
    return pass.run(*model);
  } catch (const PassFault&) {  // of a pipeline that the pass runs
    throw;
  } catch (const InternalError& error) {
    throw PassFault(alone(named(error)), place);
  } catch (const Error& error) {
    if (before.empty()) throw;
    throw Error(alone(error.what()), error.code());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw PassFault(alone(named(error)), place);
  }
}

}  // namespace

std::vector<PassTiming> run_pipeline(const std::vector<Pass>& passes, Model* model, const PipelineOptions& options) {
  using Clock = std::chrono::steady_clock;
  std::vector<PassTiming> timings;
  const bool dumps = !options.dump_dir.empty() && !passes.empty();
  std::string before = dumps ? dump(*model, options.dump_dir, 0, "input") : "";
  if (options.observe && !passes.empty()) options.observe(nullptr, *model);
  for (const Pass& pass : passes) {
    const PassPlace place = {pass.name, timings.size() + 1};
    const bool is_kept = options.kept.number == place.number && options.kept.name == place.name;
    if (is_kept && !options.kept_file.empty()) keep(*model, options.kept_file);
    const size_t nodes = model->graph->num_nodes();
    const auto start = Clock::now();
    const bool changed = run_pass(pass, place, model, before);
    const std::chrono::duration<double, std::milli> elapsed = Clock::now() - start;
    timings.push_back(
        {pass.name, pass.phase, elapsed.count(), changed, nodes, model->graph->num_nodes(), pass.numbers});
    if (dumps) {
      const std::string after = dump(*model, options.dump_dir, timings.size(), pass.name);
      if (timings.size() == 1) remove_dump(before);  // it is there for a fault of the first pass
      before = after;
    }
    if (options.observe) options.observe(&timings.back(), *model);
    if (options.verify) verify(*model, place);
  }
  return timings;
}

}  // namespace onnx_train
