#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/absent_data.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/loading/source.h"
#include "runtime/session/session.h"
#include "runtime/support/report_text.h"
#include "runtime/training/default_build.h"
#include "runtime/training/simulated_step.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct ScaleArguments {
  std::string model, data, ranks = "1,2,4,8";
  std::optional<int64_t> batch_size;
  std::optional<int64_t> accumulate;
  int64_t zero = 0, pipeline = 1, tensor_parallel = 1, ranks_of_machine = 0;
  std::string reduction = "exact", reduction_type = "float32";
  double latency = 20, bandwidth = 10, machine_bandwidth = 0, overhead = 0, copy_bandwidth = 0, compute = 0, tflops = 0,
         seconds = 2;
  bool sync_batch_norm = false, nccl = false, json = false;
  BuildSettings build;  // of a forward model
  bool gives_loss = false;
  SessionSettings runtime;

  bool is_simulated() const { return compute > 0 || tflops > 0; }
};

std::vector<int> numbers_of_ranks(const std::string& text) {
  std::vector<int> numbers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const bool is_number = !word.empty() && word.size() < 6 && std::all_of(word.begin(), word.end(), ::isdigit);
    if (!is_number || std::stoi(word) < 1)
      throw UsageError(concat("--ranks ", text, ": '", word, "' is no number of ranks; give them as 1,2,8"));
    numbers.push_back(std::stoi(word));
    begin = end + 1;
  }
  return numbers;
}

Network network_of(const ScaleArguments& a) {
  Network network{.latency = 1e-6 * a.latency, .bandwidth = 1e9 * a.bandwidth, .machine_bandwidth = 1e9 * a.bandwidth};
  if (a.ranks_of_machine > 0) network.ranks_of_machine = static_cast<int>(a.ranks_of_machine);
  if (a.machine_bandwidth > 0) network.machine_bandwidth = 1e9 * a.machine_bandwidth;
  network.is_nccl = a.nccl;
  network.overhead = 1e-6 * a.overhead;
  if (a.copy_bandwidth > 0) network.overhead_of_byte = 1 / (1e9 * a.copy_bandwidth);
  return network;
}

struct Scaled {
  double compute, network, step;  // milliseconds of a step
  double megabytes;               // that a rank sends in a step
  double exchanges;
  double state, arena;  // bytes of a rank
  double alone = 0;     // milliseconds of one batch and the update on one rank; 0: not known
  double flops = 0;     // of that; 0: not counted
};

// What is scaled: a training model, or one that is built of a forward model, with a batch of a rank.
struct ScaledModel {
  Model model;
  TensorMap batch;
  std::string built;  // of a forward model: how
};

ScaledModel load(const ScaleArguments& a) {
  BuildSettings settings = a.build;
  settings.device = a.runtime.device;
  settings.build.accumulate = true;
  if (!a.gives_loss) settings.build.loss.clear();
  DefaultBuild found = load_or_build(
      a.model, settings,
      [&](const Model& forward) {
        return guess_loss(forward, a.data, ReadOptions{{}, DataRole::kTrain, {}, {}});
      },
      [&](const Model& forward) { return load_dataset(a.data, entry_inputs(forward, Entry::kPredict)); });
  ScaledModel scaled{std::move(found.model), {}, found.is_built ? found.loss : ""};
  if (!scaled.model.find_entry_point(Entry::kAccumulate))
    fail_as(ErrorCode::kNeedsAccumulate, a.model, " updates its weights with each batch; build it with --accumulate");
  scaled.batch =
      first_batch(a.data, entry_inputs(scaled.model, Entry::kAccumulate), a.batch_size, Preprocess(scaled.model));
  return scaled;
}

SessionOptions rank_options(const ScaleArguments& a, int ranks) {
  SessionOptions options = options_of_session(a.runtime);
  if (ranks == 1) return options;
  options.topology.sharding = static_cast<Sharding>(a.zero);
  options.topology.sums_once = a.reduction == "fast";
  options.topology.sums_in_bf16 = a.reduction_type == "bf16";
  options.topology.sync_batch_norm = a.sync_batch_norm;
  options.topology.stages = static_cast<int>(a.pipeline);
  options.topology.tensor = static_cast<int>(a.tensor_parallel);
  return options;
}

// Where the time of a rank is given.
Scaled simulate(const ScaleArguments& a, const ScaledModel& scaled, int ranks, int64_t batches) {
  const SimulatedStep step = simulate_step(scaled.model, rank_options(a, ranks), ranks, batches,
                                           shapes_of(scaled.batch), network_of(a), {1e-3 * a.compute, 1e12 * a.tflops});
  return {.compute = 1e3 * step.compute,
          .network = 1e3 * step.network,
          .step = 1e3 * step.time,
          .megabytes = 1e-6 * step.bytes,
          .exchanges = static_cast<double>(step.exchanges),
          .state = static_cast<double>(step.state),
          .arena = static_cast<double>(step.arena),
          .alone = 1e3 * step.alone,
          .flops = step.flops};
}

// Where a rank computes here.
Scaled measure(const ScaleArguments& a, const ScaledModel& scaled, int ranks, int64_t batches) {
  SimulatedRanks simulated(ranks, network_of(a));
  SessionOptions options = rank_options(a, ranks);
  if (ranks > 1) options.topology.collectives = &simulated;
  Session session(clone(scaled.model), options);
  const auto step = [&] {
    const int at_once = session.topology().batches_at_once();
    for (int64_t i = 0; i < batches; i += at_once)
      session.run(Entry::kAccumulate, scaled.batch, 0, i + at_once >= batches);
    session.run(Entry::kApply, {});
  };
  step();
  std::vector<std::pair<double, double>> times;  // milliseconds of computing and of waiting
  const auto begin = std::chrono::steady_clock::now();
  do {
    simulated.restart();
    step();
    times.emplace_back(1e3 * simulated.compute_seconds(), 1e3 * simulated.stalled_seconds());
  } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < a.seconds);
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  const auto [compute, waiting] = times[times.size() / 2];
  return {.compute = compute,
          .network = 1e3 * simulated.network_seconds(),
          .step = compute + waiting,
          .megabytes = 1e-6 * simulated.bytes(),
          .exchanges = static_cast<double>(simulated.exchanges()),
          .state = static_cast<double>(session.state_bytes()),
          .arena = static_cast<double>(session.arena_bytes())};
}

void say_what_is_absent(const ScaleArguments& a) {
  const AbsentData absent = absent_data();
  if (absent.tensors == 0) return;
  print_notes({concat(a.model, ": the data of ", absent.tensors, absent.tensors == 1 ? " weight (" : " weights (",
                      format_bytes(static_cast<double>(absent.bytes)), ") are absent, '", absent.file,
                      "'; their shapes alone are planned")});
}

int run(const ScaleArguments& a) {
  const std::vector<int> numbers = numbers_of_ranks(a.ranks);
  TextTable table("rrrrrrrrr");
  table.add(
      {"ranks", "compute ms", "network ms", "waits ms", "step ms", "of one rank's rate", "MB sent", "state", "arena"});
  if (a.compute > 0 && a.tflops > 0) throw UsageError("--tflops and --compute both say how fast one rank is; give one");
  if (a.pipeline > 1 && !a.is_simulated())
    throw UsageError(
        "--pipeline: stages do not compute here; give --compute, the milliseconds that one rank takes for a batch, or "
        "--tflops");
  if (!options_of_session(a.runtime).device->uses_host_memory())
    throw UsageError("scale plans and computes on the CPU; leave out --device, and give --compute for another device");
  allow_absent_data(a.is_simulated());  // which plans shapes alone
  const ScaledModel scaled = load(a);
  say_what_is_absent(a);
  const auto scale = [&](int ranks, int64_t batches) {
    return a.is_simulated() ? simulate(a, scaled, ranks, batches) : measure(a, scaled, ranks, batches);
  };
  std::optional<double> alone;  // milliseconds of one batch and an update
  for (const int ranks : numbers) {
    const int64_t batches = a.accumulate.value_or(std::max<int64_t>(1, ranks / a.tensor_parallel));
    const Scaled s = scale(ranks, batches);
    if (!alone) alone = ranks == 1 && batches == 1 ? s.step : s.alone > 0 ? s.alone : scale(1, 1).step;
    const double speedup = static_cast<double>(batches) * *alone / s.step;
    const double waiting = s.step - s.compute;
    if (a.json) {
      nlohmann::json row = {{"ranks", ranks},           {"compute_ms", s.compute},  {"network_ms", s.network},
                            {"waiting_ms", waiting},    {"step_ms", s.step},        {"speedup", speedup},
                            {"megabytes", s.megabytes}, {"exchanges", s.exchanges}, {"state_bytes", s.state},
                            {"arena_bytes", s.arena}};
      if (s.flops > 0) row["flops_alone"] = s.flops;
      std::printf("%s\n", row.dump().c_str());
      std::fflush(stdout);
      continue;
    }
    table.add({std::to_string(ranks), format_number(s.compute), format_number(s.network), format_number(waiting),
               format_number(s.step), concat(format_number(speedup), " x"), format_number(s.megabytes),
               format_bytes(s.state), format_bytes(s.arena)});
  }
  if (!a.json) {
    print(concat(
        scaled.built.empty() ? "" : concat(a.model, " is a forward model: built with --loss ", scaled.built, "\n"),
        "compute: ",
        !a.is_simulated() ? "measured here, on one rank"
        : a.compute > 0   ? "given for one rank, and shared out by the costs of nodes"
                          : concat(format_number(*alone), " ms a batch on one rank, the plan's operations at --tflops"),
        "; network, and how long a rank waits for it: modelled, not measured\n", table.text(0, text_width())));
  }
  return 0;
}

}  // namespace

Subcommand scale_command() {
  auto a = std::make_shared<ScaleArguments>();
  const auto given = std::make_shared<std::set<std::string>>();
  std::vector<CommandOption> options = {
      {"MODEL", &a->model, "a training model that was built with --accumulate, a checkpoint, or a forward model",
       "FILE", true},
      {"--data", &a->data, "the data: see fit --help", "PATH", true},
      {"--batch-size", {&a->batch_size, kCount}, "samples of a batch [32, or all where the data has fewer]", "N"},
      {"--ranks", &a->ranks, "numbers of ranks [1,2,4,8]", "N,..."},
      {"--accumulate", {&a->accumulate, kCount}, "batches of a step, which the ranks share out [one for each]", "N"},
      {"--zero", {&a->zero, Range{0, false, 3}}, "states that ranks share out, as fit has it [0]", "STAGE"},
      {"--reduction",
       &a->reduction,
       "when ranks add up gradients, as fit has it [exact]",
       "WHEN",
       false,
       {"exact", "fast"}},
      {"--reduction-type",
       &a->reduction_type,
       "the type in which gradients travel with --reduction fast [float32]",
       "TYPE",
       false,
       {"float32", "bf16"}},
      {"--pipeline", {&a->pipeline, kCount}, "stages of the model, as fit has it; with --compute [1]", "N"},
      {"--tensor-parallel",
       {&a->tensor_parallel, kCount},
       "ranks that compute products together, as fit has it [1]",
       "N"},
      {"--sync-batch-norm", &a->sync_batch_norm, "as fit has it"},
      {"--latency", {&a->latency, Range{0}}, "of an exchange between all ranks, in microseconds [20]", "US"},
      {"--bandwidth", {&a->bandwidth, kPositive}, "of a rank, in 10^9 bytes a second each way [10]", "GB/S"},
      {"--ranks-per-machine", {&a->ranks_of_machine, kCount}, "that share a link to other machines [all]", "N"},
      {"--machine-bandwidth", {&a->machine_bandwidth, kPositive}, "of that link [--bandwidth]", "GB/S"},
      {"--nccl", &a->nccl,
       "collectives are those of NCCL: what leaves a machine crosses once; without it each rank sends to each other "
       "one, "
       "as on the CPU"},
      {"--overhead",
       {&a->overhead, Range{0}},
       "that an exchange takes of the rank itself, in microseconds: nothing hides it [0]",
       "US"},
      {"--copy-bandwidth",
       {&a->copy_bandwidth, kPositive},
       "with which the rank itself copies what it sends [it copies nothing]",
       "GB/S"},
      {"--compute",
       {&a->compute, kPositive},
       "the milliseconds that one rank takes for a batch and the update, where another device was measured: then "
       "nothing is computed here, no memory is taken for states, and files of weights may be absent",
       "MS"},
      {"--tflops",
       {&a->tflops, kPositive},
       "instead of --compute: 10^12 floating-point operations a second, at which one rank computes those that the plan "
       "counts",
       "N"},
      {"--seconds", &a->seconds, "how long to measure each number of ranks [2]", "S"},
      {"--json", &a->json, "one JSON object for each number of ranks"}};
  const std::vector<CommandOption> build =
      options_of_forward(&a->build, {"loss", "optimizer", "precision", "batch", "lora", "train", "freeze"});
  options.insert(options.end() - 2, build.begin(), build.end());
  return {"scale",
          "What a step would take on several ranks: one computes here, the network is a model of it",
          "  onnx-train scale train.onnx --data train.npz --batch-size 32 --ranks 1,2,8,64 --zero 1\n"
          "  onnx-train scale train.onnx --data train.npz --ranks 8,64,512 --ranks-per-machine 8 --bandwidth 400 "
          "--machine-bandwidth 50 --latency 10 --compute 21",
          with_session_options(std::move(options), &a->runtime),
          [a, given] {
            a->gives_loss = given->count("loss") > 0;
            return run(*a);
          },
          given};
}

}  // namespace onnx_train
