#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "onnx_passes/ir/error.h"
#include "runtime/checkpoint.h"
#include "runtime/session.h"
#include "tools/data/source.h"
#include "tools/report/format.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUp = 3;  // steps that do not count

struct BenchArguments {
  std::string model, data, entry = "step";
  int64_t batch_size = 32;
  double seconds = 5;
  bool json = false;
  RuntimeOptions runtime;
};

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// The most memory that this process has had resident, in bytes.
double peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::strtod(line.c_str() + 6, nullptr);
  }
  return 0;
}

TensorMap first_batch(const BenchArguments& arguments, const Session& session) {
  const Dataset data = load_dataset(arguments.data, entry_inputs(session.model(), arguments.entry));
  std::vector<int64_t> rows(static_cast<size_t>(std::min(arguments.batch_size, data.num_samples())));
  std::iota(rows.begin(), rows.end(), 0);
  TensorMap batch;
  data.gather(rows.data(), static_cast<int64_t>(rows.size()), &batch);
  return batch;
}

int run(const BenchArguments& arguments) {
  Session session(load_training_model(arguments.model), session_options(arguments.runtime));
  const TensorMap batch = first_batch(arguments, session);
  std::vector<double> times;
  const Clock::time_point begin = Clock::now();
  for (int64_t step = -kWarmUp; step < 1 || milliseconds_since(begin) < 1000 * arguments.seconds; ++step) {
    const Clock::time_point start = Clock::now();
    session.run(arguments.entry, batch);
    const double time = milliseconds_since(start);
    if (step < 0) continue;
    times.push_back(time);
    if (!arguments.json) continue;
    std::printf("{\"ms\": %.6f}\n", time);
    std::fflush(stdout);
  }
  if (arguments.json) return 0;
  std::sort(times.begin(), times.end());
  Table table("lr");
  table.add({arguments.entry + "s", std::to_string(times.size())});
  table.add({"median", format_number(times[times.size() / 2]) + " ms"});
  table.add({"fastest", format_number(times.front()) + " ms"});
  table.add({"peak memory", format_bytes(peak_memory())});
  std::printf("%s", table.text(0).c_str());
  return 0;
}

}  // namespace

Subcommand bench_command() {
  auto a = std::make_shared<BenchArguments>();
  return {"bench",
          "How long a step takes, and how much memory the process needs; one batch, again and again, nothing is kept",
          "  onnx-train bench train.onnx --data train.npz --batch-size 64 --seconds 10\n"
          "  onnx-train bench train.onnx --data train.npz --entry evaluate",
          with_runtime_options({{"MODEL", &a->model, "a training model or a checkpoint", "FILE", true},
                                {"--data", &a->data, "the data: see fit --help", "PATH", true},
                                {"--entry", &a->entry, "the entry point to run [step]", "NAME"},
                                {"--batch-size", &a->batch_size, "samples at a time [32]", "N"},
                                {"--seconds", &a->seconds, "how long to go on [5]", "S"},
                                {"--json", &a->json, "one JSON object a step"}},
                               &a->runtime),
          [a] { return run(*a); }};
}

}  // namespace onnx_train
