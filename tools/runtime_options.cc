#include "tools/runtime_options.h"

#include <sstream>

#include "kernels/host.h"
#include "kernels/lowering/lowering.h"
#include "onnx_passes/adapt/test_time_augmentation.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/preprocess.h"
#include "runtime/inference_export.h"

namespace onnx_train {

namespace {

// "-NAME,-NAME"
void check_passes(const std::string& text) {
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    if (name.size() < 2 || name[0] != '-') fail("the passes to leave out, -NAME or -NAME,-NAME");
  }
}

std::vector<std::string> left_out_passes() {
  std::vector<std::string> words;
  for (const std::string& name : optional_passes(default_device())) words.push_back("-" + name);
  return words;
}

constexpr Range kThreads{1, false, 1024};  // what OpenMP cannot start ends the process

}  // namespace

CommandOption dtype_option(std::string* dtype) {
  return {"--dtype", dtype, "float64 computes in double precision [float32]", "TYPE", false, {"float32", "float64"}};
}

CommandOption scale_option(std::vector<std::string>* scales) {
  return {"--scale",
          {scales, check_scale},
          "multiply the network's input by X, or those named: 1/255 for bytes to 0..1, image=1/255; the trained model "
          "keeps it [as the model was trained; 1]",
          "[INPUT=]X"};
}

CommandOption preprocess_option(std::string* steps) {
  return {
      "--preprocess",
      steps,
      "what is done to the network's input, such as 'resize(256), crop(224), normalize(imagenet)'; the trained model "
      "keeps it (docs/data.md) [as the model was trained; for pictures in files, what its input suggests]",
      "STEPS",
      false,
      {},
      preprocess_step_names};
}

CommandOption links_option(std::string* folder) {
  return {"--allow-links", folder, "the model's data files may be links that lead into this folder", "DIR"};
}

CommandOption tta_option(RuntimeOptions* runtime) {
  return {
      "--tta",
      {&runtime->tta, check_views},
      "average the network's output over views of its pictures: flip, vflip, shift(1), or several, 'flip, shift(1)' "
      "[the pictures as they are]",
      "VIEWS",
      false,
      {},
      view_names};
}

CommandOption seed_option(RuntimeOptions* runtime) {
  return {"--seed", &runtime->seed, "of what random operators of the model draw [0]", "N"};
}

std::vector<std::string> entry_names() { return {"predict", "evaluate", "step", "accumulate", "apply", "initialize"}; }

CommandOption device_option(std::string* device) {
  return {"--device",   device, "what runs the model, as `onnx-train devices` lists it: cpu, cuda, cuda:1 [cpu]",
          "NAME",       false,  {},
          Device::names};
}

std::vector<CommandOption> with_runtime_options(std::vector<CommandOption> options, RuntimeOptions* runtime,
                                                DataOptions* reading, SampleOptions* samples) {
  if (reading) options = joined(std::move(options), data_options(reading));
  if (samples) options = joined(std::move(options), sample_options(samples));
  options.insert(
      options.end(),
      {device_option(&runtime->device),
       {"--threads", {&runtime->threads, kThreads}, "threads [all cores that the process may use]", "N"},
       {"--lowering",
        {&runtime->lowering, check_passes},
        "-NAME,...: plan without these lowering passes (docs/lowering.md)",
        "-NAME",
        false,
        {},
        left_out_passes},
       {"--no-lowering", &runtime->no_lowering, "plan with none but the passes that every plan needs"},
       {"--memory",
        {&runtime->memory, check_bytes},
        "for gradients and activations, 500MB or 2GiB: what does not fit is computed again when it is needed",
        "SIZE"},
       {"--tf32", &runtime->tf32, "let products of float32 round their operands to 10 bits after the point, on GPUs"},
       {"--deterministic",
        &runtime->deterministic,
        "off lets a GPU's library add in the order in which its threads arrive, where that is faster: two runs "
        "differ in their last bits [on]",
        "on|off",
        false,
        {"on", "off"}},
       {"--offload",
        &runtime->offload,
        "optimizer: what it keeps for each weight is stored in the host's memory, where a GPU reads and writes it "
        "once a step; the bits stay (docs/cuda.md) [none]",
        "WHAT",
        false,
        {"none", "optimizer"}},
       {"--dump-lowering", &runtime->dump_folder, "write the graph after each lowering pass, as .onnx and .txt", "DIR"},
       {"--check-memory", &runtime->check_memory,
        "stop at a node that writes what is not its own, and let none read what nobody wrote (slow)"},
       {"--detect-anomaly", &runtime->detect_anomaly,
        "where the loss or the gradients are not finite, name the first node that it comes from (slow)"}});
  return options;
}

SessionOptions session_options(const RuntimeOptions& runtime) {
  set_num_threads(runtime.threads > 0 ? static_cast<int>(runtime.threads) : default_threads());
  SessionOptions options;
  options.device = &Device::find(runtime.device);
  options.plan.lowering.on = !runtime.no_lowering;
  options.plan.pipeline.dump_dir = runtime.dump_folder;
  options.plan.memory = parse_bytes(runtime.memory);
  options.plan.arithmetic = {.tf32 = runtime.tf32, .deterministic = runtime.deterministic == "on"};
  if (runtime.offload == "optimizer") options.offload = Offload::kOptimizer;
  options.plan.check_memory = runtime.check_memory;
  options.plan.detect_anomaly = runtime.detect_anomaly;
  options.views = parse_views(runtime.tta);
  options.seed = runtime.seed;
  std::istringstream names(runtime.lowering);
  for (std::string name; std::getline(names, name, ',');) options.plan.lowering.without.push_back(name.substr(1));
  return options;
}

}  // namespace onnx_train
