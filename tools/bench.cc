#include <algorithm>
#include <chrono>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "kernels/host.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "platform/memory.h"
#include "runtime/data/loading/source.h"
#include "runtime/plan/plan_report.h"
#include "runtime/session/session.h"
#include "runtime/support/report_text.h"
#include "runtime/training/checkpoint.h"
#include "tools/report/output.h"
#include "tools/report/profile_report.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kWarmUp = 3;         // runs that do not count
constexpr int kProfiledRuns = 10;  // and fewer when they would take longer than the runs that were timed

struct BenchArguments {
  std::string model, data, entry = name_of(Entry::kStep), trace;
  std::optional<int64_t> batch_size;
  int64_t top = 20;
  double seconds = 5;
  bool json = false, each_step = false, profile = false;
  SessionSettings runtime;
};

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void print_line(const json& object) {
  std::printf("%s\n", object.dump().c_str());
  std::fflush(stdout);
}

void print_step(double milliseconds, const TensorMap& outputs, const std::string* loss_name) {
  const auto end = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  json line{{"ms", milliseconds}, {"end", end}};
  const auto loss = loss_name ? outputs.find(*loss_name) : outputs.end();
  if (loss != outputs.end()) line["loss"] = loss->second.at(0);
  print_line(line);
}

// The times of all runs after the first few, in order of time. The seconds of the arguments begin when a plan has been
// made and kernels have been loaded.
std::vector<double> time_runs(const BenchArguments& arguments, Session* session, const TensorMap& batch) {
  std::vector<double> times;
  Clock::time_point begin;
  for (int64_t run = -kWarmUp; run < 1 || milliseconds_since(begin) < 1000 * arguments.seconds; ++run) {
    const Clock::time_point start = Clock::now();
    if (run == 0) begin = start;
    const TensorMap& outputs = session->run(arguments.entry, batch);
    const double time = milliseconds_since(start);
    if (arguments.each_step) print_step(time, outputs, session->output_name(arguments.entry, roles::kLoss));
    if (run >= 0) times.push_back(time);
  }
  std::sort(times.begin(), times.end());
  return times;
}

double quantile(const std::vector<double>& sorted, double q) {
  return sorted[std::min(static_cast<size_t>(q * static_cast<double>(sorted.size())), sorted.size() - 1)];
}

void profile_runs(const BenchArguments& arguments, double milliseconds, Session* session, Plan* plan,
                  const TensorMap& batch) {
  const double affordable = 1000 * arguments.seconds / std::max(milliseconds, 1e-6);
  const int runs = static_cast<int>(std::clamp<double>(affordable, 1, kProfiledRuns));
  plan->set_profiling(true);
  for (int run = 0; run < runs; ++run) session->run(arguments.entry, batch);
  plan->set_profiling(false);
}

void write_trace(const std::string& path, const std::vector<NodeProfile>& profile) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (!file) fail(path, " cannot be written");
  const std::string text = chrome_trace(profile);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !written) fail(path, " could not be written to its end");
}

// Bytes of the memory of the session's device. On the CPU `peak` is what the process had resident at most; elsewhere
// what of the device's memory the session takes, with what libraries and drivers have for it. `host_state` is in the
// host's memory, of --offload.
struct Memory {
  double peak = 0, state = 0, host_state = 0, arena = 0, workspace = 0, constants = 0;

  double other() const { return std::max(0.0, peak - state - arena - constants); }
};

// What the runs have shown; filled before the roofline is measured, which needs memory of its own.
struct Report {
  std::string device;
  bool is_host = true;        // its memory is the process's
  std::vector<double> times;  // sorted
  Memory memory;
  std::vector<NodeProfile> profile;
  Roofline roofline;
  std::string nodes;  // as JSON

  double nodes_milliseconds() const {
    double sum = 0;
    for (const NodeProfile& node : profile) sum += node.milliseconds;
    return sum;
  }
  double least_milliseconds() const {
    double sum = 0;
    for (const NodeProfile& node : profile) sum += roofline.least_milliseconds(node.cost);
    return sum;
  }
};

void print_json(const BenchArguments& arguments, const TensorMap& batch, const Report& report) {
  const NodeCost total = total_cost(report.profile);
  const double median = quantile(report.times, 0.5), bound = report.roofline.arithmetic_milliseconds(total);
  json gflops = json::object();
  for (const auto& [dtype, rate] : report.roofline.flops_per_second) gflops[name(dtype)] = 1e-9 * rate;
  json object{{"entry", arguments.entry},
              {"inputs", shapes_of(batch)},
              {"threads", num_threads()},
              {"runs", report.times.size()},
              {"median_ms", median},
              {"quartiles_ms", {quantile(report.times, 0.25), quantile(report.times, 0.75)}},
              {"fastest_ms", report.times.front()},
              {"device", report.device},
              {"peak_memory_bytes", report.memory.peak},
              {"state_bytes", report.memory.state},
              {"host_state_bytes", report.memory.host_state},
              {"arena_bytes", report.memory.arena},
              {"workspace_bytes", report.memory.workspace},
              {"constant_bytes", report.memory.constants},
              {"other_bytes", report.memory.other()},
              {"flops", total.total_flops()},
              {"peak_gflops", gflops},
              {"peak_gigabytes_per_second", 1e-9 * report.roofline.bytes_per_second},
              {"bound_ms", bound},
              {"roofline_ms", report.least_milliseconds()}};
  if (arguments.profile) {
    object["nodes_ms"] = report.nodes_milliseconds();
    object["nodes"] = json::parse(report.nodes);
  }
  print_line(object);
}

void print_tables(const BenchArguments& arguments, const Report& report) {
  const NodeCost total = total_cost(report.profile);
  const double median = quantile(report.times, 0.5), bound = report.roofline.arithmetic_milliseconds(total);
  TextTable table("lr");
  table.add({arguments.entry + "s", std::to_string(report.times.size())});
  table.add({"median", format_number(median) + " ms"});
  table.add({"quartiles", concat(format_number(quantile(report.times, 0.25)), " to ",
                                 format_number(quantile(report.times, 0.75)), " ms")});
  table.add({"fastest", format_number(report.times.front()) + " ms"});
  const Memory& memory = report.memory;
  table.add({concat("peak memory", report.is_host ? "" : " of " + report.device), format_bytes(memory.peak)});
  table.add({"states", format_bytes(memory.state)});
  if (memory.host_state > 0) table.add({"states in the host's memory", format_bytes(memory.host_state)});
  table.add(
      {"arena", concat(format_bytes(memory.arena), ", a kernel's workspace up to ", format_bytes(memory.workspace))});
  if (!report.is_host) table.add({"constants", format_bytes(memory.constants)});
  if (!report.is_host) table.add({"inputs, outputs, libraries", format_bytes(memory.other())});
  table.add({"products and convolutions", format_count(total.total_flops()) + "FLOP"});
  for (const auto& [dtype, rate] : report.roofline.flops_per_second) {
    table.add({concat("a large ", name(dtype), " product reaches"), format_number(1e-9 * rate) + " GFLOP/s"});
  }
  table.add({"large tensors move at", format_number(1e-9 * report.roofline.bytes_per_second) + " GB/s"});
  const auto of_median = [&](double milliseconds) {
    return concat(format_number(milliseconds), " ms, ", format_number(100 * milliseconds / median), "%");
  };
  table.add({"arithmetic bound", of_median(bound)});
  table.add({"each node at its bound", of_median(report.least_milliseconds())});
  if (arguments.profile) table.add({"nodes, measured one by one", of_median(report.nodes_milliseconds())});
  std::printf("%s", table.text(0, text_width()).c_str());
  if (!arguments.profile) return;
  std::printf(
      "\n%s",
      profile_tables(report.profile, report.roofline, static_cast<size_t>(arguments.top), table_width()).c_str());
}

// `available`: bytes of the device's memory before there was the session. A run allocates nothing.
Memory memory_of(Session& session, const Plan& plan, size_t available) {
  const Device& device = session.device();
  const size_t left = device.uses_host_memory() ? 0 : device.available_bytes();
  return {.peak = device.uses_host_memory() ? platform::peak_memory()
                                            : static_cast<double>(available - std::min(left, available)),
          .state = static_cast<double>(session.state().bytes()),
          .host_state = static_cast<double>(session.state().host_bytes()),
          .arena = static_cast<double>(session.arena_bytes()),
          .workspace = static_cast<double>(plan.workspace_bytes()),
          .constants = static_cast<double>(plan.constant_bytes())};
}

int run(const BenchArguments& arguments) {
  if (arguments.json && arguments.each_step) throw UsageError("--json or --each-step, not both");
  if (arguments.each_step) print_line({{"resident", platform::resident_memory()}});
  const SessionOptions options = options_of_session(arguments.runtime);
  const Device& device = *options.device;
  const size_t available = device.uses_host_memory() ? 0 : device.available_bytes();
  Session session(load_training_model(arguments.model), options);
  const std::vector<InputSpec> inputs = entry_inputs(session.model(), arguments.entry);
  const TensorMap batch = first_batch(arguments.data, inputs, arguments.batch_size, Preprocess(session.model()));
  Report report;
  report.device = device.name();
  report.is_host = device.uses_host_memory();
  report.times = time_runs(arguments, &session, batch);
  if (arguments.each_step) return 0;
  Plan& plan = session.plan(arguments.entry, shapes_of(batch));
  report.memory = memory_of(session, plan, available);
  if (arguments.profile || !arguments.trace.empty()) {
    profile_runs(arguments, report.times.front(), &session, &plan, batch);
  }
  report.profile = profile_of(plan);
  if (!arguments.trace.empty()) write_trace(arguments.trace, report.profile);
  std::set<DType> types;
  for (const auto& [dtype, flops] : total_cost(report.profile).flops) types.insert(dtype);
  report.roofline = measure_roofline(session, types);
  report.nodes = plan_json(plan, [&](const NodeCost& cost) { return report.roofline.least_milliseconds(cost); });
  if (arguments.json) {
    print_json(arguments, batch, report);
  } else {
    print_tables(arguments, report);
  }
  return 0;
}

}  // namespace

Subcommand bench_command() {
  auto a = std::make_shared<BenchArguments>();
  return {
      "bench", "How long a step takes and why, how much memory it needs; one batch again and again, nothing is kept",
      "  onnx-train bench train.onnx --data train.npz --batch-size 64 --seconds 10\n"
      "  onnx-train bench train.onnx --data train.npz --profile --trace step.json\n"
      "  onnx-train bench train.onnx --data train.npz --entry evaluate",
      with_session_options(
          {{"MODEL", &a->model, "a training model or a checkpoint", "FILE", true},
           {"--data", &a->data, "the data: see fit --help", "PATH", true},
           {"--entry", &a->entry, "the entry point to run [step]", "NAME", false, {}, entry_names},
           {"--batch-size", {&a->batch_size, kCount}, "samples at a time [32, or all where the data has fewer]", "N"},
           {"--seconds", &a->seconds, "how long to go on after three steps that do not count [5]", "S"},
           {"--profile", &a->profile, "then time each node: by operator, and the slowest with their roofline"},
           {"--top", {&a->top, kCount}, "how many of the slowest nodes [20]", "N"},
           {"--trace",
            {&a->trace, file_with(".json")},
            "write one run's nodes for chrome://tracing or ui.perfetto.dev",
            "FILE"},
           {"--json", &a->json, "one JSON object instead of tables; with --profile every node is in it"},
           {"--each-step", &a->each_step, "one JSON object a run as they end, warm-up included, and no more"}},
          &a->runtime),
      [a] { return run(*a); }};
}

}  // namespace onnx_train
