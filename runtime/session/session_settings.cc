#include "runtime/session/session_settings.h"

#include <sstream>

#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/adapt/test_time_augmentation.h"
#include "onnx_passes/ir/error.h"

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

void check_views(const std::string& text) {
  try {
    parse_views(text);
  } catch (const Error& error) {
    throw UsageError(error.what(), error.code());
  }
}

CommandOption tta_option(SessionSettings* settings) {
  return {
      "--tta",
      {&settings->tta, check_views},
      "average the network's output over views of its pictures: flip, vflip, shift(1), or several, 'flip, shift(1)' "
      "[the pictures as they are]",
      "VIEWS",
      false,
      {},
      view_names};
}

CommandOption seed_option(SessionSettings* settings) {
  return {"--seed", &settings->seed, "of what random operators of the model draw [0]", "N"};
}

CommandOption device_option(std::string* device) {
  return {"--device",   device, "what runs the model, as `onnx-train devices` lists it: cpu, cuda, cuda:1 [cpu]",
          "NAME",       false,  {},
          Device::names};
}

std::vector<CommandOption> session_options(SessionSettings* settings) {
  return {
      device_option(&settings->device),
      {"--threads", {&settings->threads, kThreads}, "threads [all cores that the process may use]", "N"},
      of_command({"--lowering",
                  {&settings->lowering, check_passes},
                  "-NAME,...: plan without these lowering passes (docs/lowering.md)",
                  "-NAME",
                  false,
                  {},
                  left_out_passes}),
      of_command({"--no-lowering", &settings->no_lowering, "plan with none but the passes that every plan needs"}),
      {"--memory",
       {&settings->memory, check_bytes},
       "for gradients and activations, 500MB or 2GiB: what does not fit is computed again when it is needed",
       "SIZE"},
      {"--max-plans",
       {&settings->max_plans, kCount},
       "plans that are kept, one for each set of sizes of the inputs; the one that was used last the longest ago makes "
       "room [16]",
       "N"},
      {"--tf32", &settings->tf32, "let products of float32 round their operands to 10 bits after the point, on GPUs"},
      {"--deterministic", &settings->deterministic,
       "off lets a GPU's library add in the order in which its threads arrive, where that is faster: two runs "
       "differ in their last bits [on]",
       "on|off"},
      {"--offload",
       &settings->offload,
       "optimizer: what it keeps for each weight is stored in the host's memory, where a GPU reads and writes it "
       "once a step; the bits stay (docs/cuda.md) [none]",
       "WHAT",
       false,
       {"none", "optimizer"}},
      of_command({"--dump-lowering", &settings->dump_folder,
                  "write the graph after each lowering pass, as .onnx and .txt", "DIR"}),
      of_command({"--check-memory", &settings->check_memory,
                  "stop at a node that writes what is not its own, and let none read what nobody wrote (slow)"}),
      {"--detect-anomaly", &settings->detect_anomaly,
       "where the loss or the gradients are not finite, name the first node that it comes from (slow)"},
      of_library({"--allow-non-finite", &settings->allow_non_finite,
                  "update the weights with a loss that is NaN or infinite, too [an error]"}),
  };
}

std::vector<CommandOption> rank_options(SessionSettings* settings) {
  return {of_library({"--ranks",
                      &settings->ranks,
                      "environment: this process is one of several, as its launcher's variables say [one process]",
                      "WHERE",
                      false,
                      {"environment"}}),
          {"--sync-batch-norm", &settings->sync_batch_norm,
           "several processes: batch normalization over their batches as over one; the number of processes then "
           "matters"},
          {"--zero",
           {&settings->zero, Range{0, false, 3}},
           "several processes keep one copy of the optimizer's states (1), of the sums of gradients (2), and of the "
           "weights (3), together [0]",
           "STAGE"},
          {"--reduction",
           &settings->reduction,
           "several processes add up gradients after each round of batches, so that no bit depends on their number "
           "(exact), or once a step (fast); auto: exact on CPUs [auto]",
           "WHEN",
           false,
           {"auto", "exact", "fast"}},
          {"--reduction-type",
           &settings->reduction_type,
           "--reduction fast: the type in which gradients travel; bf16 takes half of the bytes, and rounds them "
           "[float32]",
           "TYPE",
           false,
           {"float32", "bf16"}},
          {"--pipeline",
           {&settings->pipeline, kCount},
           "several processes: each has a stage of the model, of as many layers as take about the same time, and the "
           "batches of a step go through all of them [1]",
           "STAGES"},
          {"--tensor-parallel",
           {&settings->tensor_parallel, kCount},
           "several processes: so many compute products together, each with its part of the weights and of their "
           "states [1]",
           "RANKS"}};
}

TopologyOptions topology_of(const SessionSettings& settings) {
  TopologyOptions options;
  options.sync_batch_norm = settings.sync_batch_norm;
  options.sharding = static_cast<Sharding>(settings.zero);
  options.stages = static_cast<int>(settings.pipeline);
  options.tensor = static_cast<int>(settings.tensor_parallel);
  // The order of sums on GPUs is NCCL's in any case.
  const bool may_be_fast = options.sharding < Sharding::kGradients;
  options.sums_once = settings.reduction == "fast" ||
                      (settings.reduction == "auto" && settings.device.starts_with("cuda") && may_be_fast);
  options.sums_in_bf16 = settings.reduction_type == "bf16";
  return options;
}

SessionOptions resolve(const SessionSettings& settings) {
  SessionOptions options;
  options.device = &Device::find(settings.device);
  options.threads = static_cast<int>(settings.threads);
  options.plan.lowering.on = !settings.no_lowering;
  std::istringstream names(settings.lowering);
  for (std::string name; std::getline(names, name, ',');) options.plan.lowering.without.push_back(name.substr(1));
  options.plan.pipeline.dump_dir = settings.dump_folder;
  options.max_plans = static_cast<size_t>(settings.max_plans);
  options.plan.memory = parse_bytes(settings.memory);
  options.plan.arithmetic = {.tf32 = settings.tf32, .deterministic = settings.deterministic};
  options.plan.check_memory = settings.check_memory;
  options.plan.detect_anomaly = settings.detect_anomaly;
  if (settings.offload == "optimizer") options.offload = Offload::kOptimizer;
  options.refuse_non_finite_loss = !settings.allow_non_finite;
  options.views = parse_views(settings.tta);
  options.seed = settings.seed;
  options.topology = topology_of(settings);
  return options;
}

}  // namespace onnx_train
