#include <algorithm>
#include <chrono>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/data/source.h"
#include "runtime/distribution/simulated_ranks.h"
#include "runtime/report_text.h"
#include "runtime/session.h"
#include "runtime/training/checkpoint.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct ScaleArguments {
  std::string model, data, ranks = "1,2,4,8";
  std::optional<int64_t> batch_size;
  int64_t zero = 0, ranks_of_machine = 0;
  double latency = 20, bandwidth = 10, machine_bandwidth = 0, overhead = 0, copy_bandwidth = 0, compute = 0,
         seconds = 2;
  bool sync_batch_norm = false, json = false;
  RuntimeOptions runtime;
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
  network.overhead = 1e-6 * a.overhead;
  if (a.copy_bandwidth > 0) network.overhead_of_byte = 1 / (1e9 * a.copy_bandwidth);
  return network;
}

struct Scaled {
  int ranks;
  double compute, network;  // milliseconds of a step
  double waiting;           // of those of the network: that a rank waits for
  double megabytes;         // that a rank sends in a step
  double exchanges;
  double state, arena;  // bytes of a rank
  double step() const { return compute + waiting; }
};

// A step: one batch a rank, and the update.
Scaled simulate(const ScaleArguments& a, int ranks) {
  SimulatedRanks simulated(ranks, network_of(a));
  SessionOptions options = session_options(a.runtime);
  if (ranks > 1) options.collectives = &simulated;
  options.sharding = static_cast<Sharding>(a.zero);
  options.sync_batch_norm = a.sync_batch_norm;
  Session session(load_training_model(a.model), options);
  if (!session.has_entry("accumulate"))
    fail_as(ErrorCode::kUsage, a.model, " updates its weights with each batch; build it with --accumulate");
  const std::vector<InputSpec> inputs = entry_inputs(session.model(), "accumulate");
  const TensorMap batch = first_batch(a.data, inputs, a.batch_size, Preprocess(session.model()));
  const auto step = [&] {
    session.run("accumulate", batch);
    session.run("apply", {});
  };
  step();
  // Milliseconds of computing and of waiting; the step in the middle.
  const auto measure = [&](double speed) {
    std::vector<std::pair<double, double>> times;
    const auto begin = Clock::now();
    do {
      simulated.restart(speed);
      step();
      times.emplace_back(1e3 * simulated.compute_seconds(), 1e3 * simulated.stalled_seconds());
    } while (std::chrono::duration<double>(Clock::now() - begin).count() < a.seconds);
    std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
    return times[times.size() / 2];
  };
  auto [compute, waiting] = measure(1);
  if (a.compute > 0) {  // another device, which takes the parts of a step as this one does
    waiting = measure(compute / a.compute).second;
    compute = a.compute;
  }
  return {.ranks = ranks,
          .compute = compute,
          .network = 1e3 * simulated.network_seconds(),
          .waiting = waiting,
          .megabytes = 1e-6 * simulated.bytes(),
          .exchanges = static_cast<double>(simulated.exchanges()),
          .state = static_cast<double>(session.state().bytes()),
          .arena = static_cast<double>(session.arena_bytes())};
}

int run(const ScaleArguments& a) {
  const std::vector<int> numbers = numbers_of_ranks(a.ranks);
  TextTable table("rrrrrrrrr");
  table.add(
      {"ranks", "compute ms", "network ms", "waits ms", "step ms", "of one rank's rate", "MB sent", "state", "arena"});
  std::optional<double> alone;
  for (const int ranks : numbers) {
    const Scaled s = simulate(a, ranks);
    if (!alone) alone = s.ranks == 1 ? s.step() : simulate(a, 1).step();
    const double speedup = ranks * *alone / s.step();
    if (a.json) {
      std::printf("%s\n", nlohmann::json({{"ranks", ranks},
                                          {"compute_ms", s.compute},
                                          {"network_ms", s.network},
                                          {"waiting_ms", s.waiting},
                                          {"step_ms", s.step()},
                                          {"speedup", speedup},
                                          {"megabytes", s.megabytes},
                                          {"exchanges", s.exchanges},
                                          {"state_bytes", s.state},
                                          {"arena_bytes", s.arena}})
                              .dump()
                              .c_str());
      std::fflush(stdout);
      continue;
    }
    table.add({std::to_string(ranks), format_number(s.compute), format_number(s.network), format_number(s.waiting),
               format_number(s.step()), concat(format_number(speedup), " x"), format_number(s.megabytes),
               format_bytes(s.state), format_bytes(s.arena)});
  }
  if (!a.json) {
    print(concat("compute: ", a.compute > 0 ? "given" : "measured here, on one rank",
                 "; network, and how long a rank waits for it: modelled, not measured\n", table.text(0, text_width())));
  }
  return 0;
}

}  // namespace

Subcommand scale_command() {
  auto a = std::make_shared<ScaleArguments>();
  return {
      "scale", "What a step would take on several ranks: one computes here, the network is a model of it",
      "  onnx-train scale train.onnx --data train.npz --batch-size 32 --ranks 1,2,8,64 --zero 1\n"
      "  onnx-train scale train.onnx --data train.npz --ranks 8,64,512 --ranks-per-machine 8 --bandwidth 400 "
      "--machine-bandwidth 50 --latency 10 --compute 21",
      with_runtime_options(
          {{"MODEL", &a->model, "a training model that was built with --accumulate, or a checkpoint", "FILE", true},
           {"--data", &a->data, "the data: see fit --help", "PATH", true},
           {"--batch-size", {&a->batch_size, kCount}, "samples of a rank [32, or all where the data has fewer]", "N"},
           {"--ranks", &a->ranks, "numbers of ranks [1,2,4,8]", "N,..."},
           {"--zero", {&a->zero, Range{0, false, 2}}, "states that ranks share out, as fit has it [0]", "STAGE"},
           {"--sync-batch-norm", &a->sync_batch_norm, "as fit has it"},
           {"--latency", {&a->latency, Range{0}}, "of an exchange between all ranks, in microseconds [20]", "US"},
           {"--bandwidth", {&a->bandwidth, kPositive}, "of a rank, in 10^9 bytes a second each way [10]", "GB/S"},
           {"--ranks-per-machine", {&a->ranks_of_machine, kCount}, "that share a link to other machines [all]", "N"},
           {"--machine-bandwidth", {&a->machine_bandwidth, kPositive}, "of that link [--bandwidth]", "GB/S"},
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
            "the milliseconds that a rank computes in a step, where another device was measured",
            "MS"},
           {"--seconds", &a->seconds, "how long to measure each number of ranks [2]", "S"},
           {"--json", &a->json, "one JSON object for each number of ranks"}},
          &a->runtime),
      [a] { return run(*a); }};
}

}  // namespace onnx_train
