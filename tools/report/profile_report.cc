#include "tools/report/profile_report.h"

#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/plan/plan_report.h"
#include "runtime/support/report_text.h"

namespace onnx_train {
namespace {

using nlohmann::json;

std::string percent(double part, double whole) { return whole <= 0 ? "-" : format_percent(part / whole); }

// What a node achieves: arithmetic where it has some, else bytes.
std::string rate(const NodeCost& cost, double milliseconds) {
  if (milliseconds <= 0) return "-";
  const double flops = cost.total_flops();
  if (flops > 0) return format_number(1e-6 * flops / milliseconds) + " GFLOP/s";
  return cost.bytes > 0 ? format_number(1e-6 * cost.bytes / milliseconds) + " GB/s" : "-";
}

struct OperatorProfile {
  std::string op;
  int nodes = 0;
  double milliseconds = 0, least = 0;
};

std::vector<OperatorProfile> by_operator(const std::vector<NodeProfile>& profile, const Roofline& roofline) {
  std::map<std::string, OperatorProfile> operators;
  for (const NodeProfile& node : profile) {
    const std::string op = operator_text(*node.step->node);
    OperatorProfile& sum = operators[op];
    sum.op = op;
    ++sum.nodes;
    sum.milliseconds += node.milliseconds;
    sum.least += roofline.least_milliseconds(node.cost);
  }
  std::vector<OperatorProfile> order;
  for (auto& [op, sum] : operators) order.push_back(std::move(sum));
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.milliseconds > b.milliseconds; });
  return order;
}

std::string first_output(const NodeProfile& node) {
  for (const Value* output : node.step->node->outputs()) {
    if (output) return output->name() + " " + to_string(output->type());
  }
  return "";
}

}  // namespace

std::vector<NodeProfile> profile_of(const Plan& plan) {
  std::vector<NodeProfile> profile;
  const int runs = std::max(plan.profiled_runs(), 1);
  for (const PlanStep& step : plan.steps()) {
    profile.push_back({&step, static_cast<int>(profile.size()), cost_of(*step.node), step.milliseconds / runs});
  }
  return profile;
}

NodeCost total_cost(const std::vector<NodeProfile>& profile) {
  NodeCost total;
  for (const NodeProfile& node : profile) {
    for (const auto& [dtype, flops] : node.cost.flops) total.flops[dtype] += flops;
    total.bytes += node.cost.bytes;
  }
  return total;
}

std::string profile_tables(const std::vector<NodeProfile>& profile, const Roofline& roofline, size_t top,
                           size_t width) {
  double total = 0;
  for (const NodeProfile& node : profile) total += node.milliseconds;
  TextTable operators("wrrrr");
  operators.add({"operator", "nodes", "ms", "share", "roofline"});
  for (const OperatorProfile& sum : by_operator(profile, roofline)) {
    operators.add({sum.op, std::to_string(sum.nodes), format_number(sum.milliseconds), percent(sum.milliseconds, total),
                   percent(sum.least, sum.milliseconds)});
  }
  std::vector<const NodeProfile*> order;
  for (const NodeProfile& node : profile) order.push_back(&node);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return a->milliseconds > b->milliseconds; });
  TextTable nodes("rwrrrrw");
  nodes.add({"#", "operator", "ms", "share", "roofline", "rate", "output"});
  for (size_t i = 0; i < std::min(top, order.size()); ++i) {
    const NodeProfile& node = *order[i];
    nodes.add({std::to_string(node.index), operator_text(*node.step->node), format_number(node.milliseconds),
               percent(node.milliseconds, total), percent(roofline.least_milliseconds(node.cost), node.milliseconds),
               rate(node.cost, node.milliseconds), first_output(node)});
  }
  return concat(operators.text(0, width), "\n", nodes.text(0, width));
}

std::string chrome_trace(const std::vector<NodeProfile>& profile) {
  json events = json::array();
  for (const NodeProfile& node : profile) {
    json outputs = json::array();
    for (const Value* output : node.step->node->outputs()) {
      if (output) outputs.push_back(output->name() + " " + to_string(output->type()));
    }
    events.push_back({{"name", node.step->node->op()},
                      {"cat", "node"},
                      {"ph", "X"},  // a complete event; times in microseconds
                      {"ts", 1000 * node.step->last_start},
                      {"dur", 1000 * node.step->last_milliseconds},
                      {"pid", 0},
                      {"tid", 0},
                      {"args",
                       {{"index", node.index},
                        {"kernel", kernel_name(*node.step)},
                        {"outputs", outputs},
                        {"flops", node.cost.total_flops()},
                        {"bytes", node.cost.bytes}}}});
  }
  return json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace onnx_train
