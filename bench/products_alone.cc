// The products and convolutions of a training step, as the plan runs them, against oneDNN alone at the same shapes.
//
//   products_alone TRAIN.onnx DATA BATCH [--json | --forms]
//
// With --forms, the form that the plan has of each node (kernels/choices/fastest.h) against every form of it, as JSON.
//
// "given" is oneDNN on operands where they lie in the plan; "chosen" on operands in whatever layout it likes best, the
// copies of matrices counted, those of a convolution's operands not. The ratio is to the faster of the two. Everything
// runs in turn on memory of its own; times are the fastest of many. Products inside of recurrent kernels are no nodes
// and not among them; the printed share of the step's arithmetic tells.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/onednn_alone.h"
#include "kernels/cost.h"
#include "kernels/host.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "platform/process.h"
#include "runtime/data/loading/source.h"
#include "runtime/plan/plan_report.h"
#include "runtime/session/session.h"
#include "runtime/support/report_text.h"
#include "runtime/training/checkpoint.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSeconds = 0.6;      // for each node
constexpr double kShortest = 0.5e-3;  // what is shorter is repeated until it takes as long

double time(Contestant& contestant) {
  const auto start = Clock::now();
  for (int i = 0; i < contestant.repeats; ++i) contestant.run();
  return std::chrono::duration<double>(Clock::now() - start).count() / contestant.repeats;
}

void take_turns(std::vector<Contestant>& contestants) {
  for (Contestant& c : contestants) {
    time(c);
    c.repeats = static_cast<int>(std::max(1.0, kShortest / time(c)));
  }
  const auto begin = Clock::now();
  for (int round = 0; round < 5 || Clock::now() - begin < std::chrono::duration<double>(kSeconds); ++round) {
    for (Contestant& c : contestants) c.fastest = std::min(c.fastest, time(c));
  }
}

// Numbers that are positive and small, whether they are read as float32 or as bfloat16.
Tensor filled(size_t bytes) {
  Tensor tensor(DType::kUint8, {static_cast<int64_t>(bytes)});
  std::memset(tensor.data(), 0x3c, bytes);
  return tensor;
}

size_t bytes_of(const Value& v) { return static_cast<size_t>(num_elements(v.type().shape())) * size_of(v.dtype()); }

// ---- Ours

// `form`: the number of the form, counted from 0; without it the rule's. Stores the form's name in *name.
Contestant ours(const Node& node, std::optional<int> form = {}, std::string* name = nullptr) {
  struct State {
    Prepared prepared;
    std::vector<Tensor> memory;
    std::vector<const void*> in;
    std::vector<void*> out;
  };
  const auto state = std::make_shared<State>();
  std::vector<Tensor> constants;
  for (const Value* v : node.inputs()) {
    constants.push_back(v && v->is_initializer() && !v->graph().is_input(v) ? constant_of(v) : Tensor());
    state->memory.push_back(v ? filled(bytes_of(*v)) : Tensor());
    state->in.push_back(state->memory.back().data());
  }
  for (const Value* v : node.outputs()) {
    state->memory.push_back(v ? filled(bytes_of(*v)) : Tensor());
    state->out.push_back(state->memory.back().data());
  }
  const NodeSpec spec(node, std::move(constants), num_threads());
  if (form) platform::set_variable("ONNX_TRAIN_TIMED_CHOICES", concat("form=", *form).c_str(), /*overwrite=*/true);
  state->prepared = find_kernel(Device::cpu(), spec)->prepare(spec);
  if (name) *name = state->prepared.form;
  state->memory.push_back(filled(state->prepared.workspace + 64));
  const auto scratch = (reinterpret_cast<uintptr_t>(state->memory.back().data()) + 63) / 64 * 64;
  return {"ours", [=] {
            Fault fault;
            state->prepared.run(
                {state->in.data(), state->out.data(), reinterpret_cast<void*>(scratch), nullptr, &fault, 1});
          }};
}

// ---- The step's nodes

std::string description(const Node& node) {
  std::string text = concat(operator_text(node), " ");
  for (int i = 0; i < 2; ++i) text += concat(i ? " x " : "", to_string(node.input(i)->type().shape()));
  text += " -> " + to_string(node.output()->type());
  for (const char* name : {"transA", "transB", "group"}) {
    if (node.has_attr(name) && node.attr(name, 0) > (name[0] == 'g'))
      text += concat(" ", name, "=", node.attr(name, 0));
  }
  for (const char* name : {"perm_a", "perm_b", "perm_y", "strides"}) {
    if (const Shape value = node.attr(name, Shape{}); !value.empty()) text += concat(" ", name, "=", to_string(value));
  }
  return text;
}

struct Line {
  const Node* node;
  int count = 0;
};

// Milliseconds of "ours", "given" and "chosen"; the last two are absent where oneDNN has no fast code.
std::map<std::string, double> measure(const Node& node) {
  auto contestants = onednn_alone(node);
  contestants.push_back(ours(node));
  take_turns(contestants);
  std::map<std::string, double> times;
  for (const Contestant& c : contestants) times[c.name] = 1e3 * c.fastest;
  return times;
}

// Milliseconds of each form of a node, by name; the number of a form that the node lacks is that of its last one.
std::map<std::string, double> measure_forms(const Node& node) {
  std::vector<Contestant> contestants;
  std::vector<std::string> names;
  for (int form = 0;; ++form) {
    std::string name;
    Contestant contestant = ours(node, form, &name);
    if (std::count(names.begin(), names.end(), name) > 0) break;
    names.push_back(name);
    contestants.push_back(std::move(contestant));
  }
  take_turns(contestants);
  std::map<std::string, double> times;
  for (size_t i = 0; i < names.size(); ++i) times[names[i]] = 1e3 * contestants[i].fastest;
  return times;
}

int run_forms(const std::string& model, const std::string& data, int64_t batch_size) {
  Session session(load_training_model(model));
  const TensorMap batch =
      first_batch(data, entry_inputs(session.model(), Entry::kStep), batch_size, Preprocess(session.model()));
  const Plan& plan = session.plan(Entry::kStep, shapes_of(batch));
  struct Chosen {
    const Node* node;
    std::string form;
  };
  std::map<std::string, Chosen> chosen;
  for (size_t i = 0; i < plan.steps().size(); ++i) {
    const Node& node = *plan.steps()[i].node;
    const std::string& form = plan.prepared()[i].form;
    if (is_compared(node) && !form.empty()) chosen[description(node)] = {&node, form};
  }
  nlohmann::json nodes = nlohmann::json::array();
  for (const auto& [text, choice] : chosen) {
    const auto times = measure_forms(*choice.node);
    if (times.size() < 2) continue;
    // Form 0 is the rule's.
    std::string rule;
    ours(*choice.node, 0, &rule);
    nodes.push_back({{"node", text}, {"form", choice.form}, {"rule_ms", times.at(rule)}, {"ms", times}});
  }
  std::printf("%s\n", nodes.dump().c_str());
  return 0;
}

void print_table(const nlohmann::json& report) {
  TextTable table("rlrrrrr");
  table.add({"count", "node", "GFLOP", "ours, ms", "given", "chosen", "ratio"});
  double ours = 0, theirs = 0;
  for (const auto& line : report["nodes"]) {
    const int count = line["count"];
    const auto times = line["ms"].get<std::map<std::string, double>>();
    const auto cell = [&](const char* name) { return times.count(name) ? format_number(times.at(name)) : "-"; };
    double best = 1e9;
    for (const auto& [name, ms] : times) best = name == "ours" ? best : std::min(best, ms);
    if (times.size() == 1) best = times.at("ours");
    ours += count * times.at("ours");
    theirs += count * best;
    table.add({std::to_string(count), line["node"], format_number(1e-9 * line["flops"].get<double>()), cell("ours"),
               cell("given"), cell("chosen"), format_number(times.at("ours") / best)});
  }
  std::printf("%s\n%.0f%% of the step's arithmetic; ours %.3f ms, oneDNN %.3f ms, ratio %.3f\n", table.text().c_str(),
              100 * report["counted"].get<double>() / report["flops"].get<double>(), ours, theirs, ours / theirs);
}

int run(const std::string& model, const std::string& data, int64_t batch_size, bool json) {
  Session session(load_training_model(model));
  const TensorMap batch =
      first_batch(data, entry_inputs(session.model(), Entry::kStep), batch_size, Preprocess(session.model()));
  std::map<std::string, Line> lines;
  double all = 0, counted = 0;
  const Plan& plan = session.plan(Entry::kStep, shapes_of(batch));
  for (const PlanStep& step : plan.steps()) {
    const double flops = cost_of(*step.node).total_flops();
    all += flops;
    if (!is_compared(*step.node)) continue;
    counted += flops;
    Line& line = lines[description(*step.node)];
    line.node = step.node;
    ++line.count;
  }
  nlohmann::json report = {{"flops", all}, {"counted", counted}, {"threads", num_threads()}};
  for (const auto& [text, line] : lines) {
    report["nodes"].push_back({{"count", line.count},
                               {"node", text},
                               {"flops", cost_of(*line.node).total_flops()},
                               {"ms", measure(*line.node)}});
  }
  json ? void(std::printf("%s\n", report.dump().c_str())) : print_table(report);
  return 0;
}

}  // namespace
}  // namespace onnx_train

int main(int count, char** words) {
  if (count < 4) return std::fprintf(stderr, "products_alone TRAIN.onnx DATA BATCH [--json | --forms]\n"), 2;
  try {
    if (count > 4 && std::string(words[4]) == "--forms")
      return onnx_train::run_forms(words[1], words[2], std::stoll(words[3]));
    return onnx_train::run(words[1], words[2], std::stoll(words[3]), count > 4);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "products_alone: %s\n", error.what()), 1;
  }
}
