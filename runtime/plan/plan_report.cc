#include "runtime/plan/plan_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/cost.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/operators/operators.h"
#include "runtime/support/report_text.h"

namespace onnx_train {
namespace {

constexpr size_t kColumns = 72, kLines = 16, kLargest = 10;
constexpr size_t kFrame = 4;  // columns around the chart

double known_bytes(const Value& value) {
  if (!value.type().is_static()) return 0;
  return static_cast<double>(num_elements(value.type().shape())) * static_cast<double>(size_of(value.dtype()));
}

}  // namespace

std::string operator_text(const Node& node) {
  std::string text = node.op();
  const Operator* row = node.domain() == kDomain ? find_operator(kDomain, node.op()) : nullptr;
  if (!row) return text;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const auto is_narrow = [&](int i) { return node.input(i) && node.input(i)->dtype() == dtype; };
    if (std::any_of(row->narrow_inputs.begin(), row->narrow_inputs.end(), is_narrow))
      text += concat(" of ", name(dtype));
  }
  if (node.attr("channels_last", 0) != 0) text += " channels_last";
  for (const EpilogueStep step : epilogue_of(node)) text += concat(" + ", row_of(step).name);
  if (const int64_t dtype = node.attr("round_to", 0)) text += concat(" round_to=", name(static_cast<DType>(dtype)));
  return text;
}

std::string kernel_name(const PlanStep& step) {
  if (!step.kernel) return "view";
  return *step.kernel->name ? step.kernel->name : step.kernel->op;
}

constexpr size_t kMaxOutputs = 3;  // per line; an optimizer's node has hundreds

std::string plan_table(const Plan& plan, size_t width) {
  const bool profiled = plan.profiled_runs() > 0;
  TextTable table("rwwrlr");
  table.add({"#", "operator", "outputs", "bytes", "kernel", profiled ? "ms" : ""});
  const auto typed_name = [](const Value* value) { return concat(value->name(), " ", to_string(value->type())); };
  double total = 0;
  for (const PlanStep& step : plan.steps()) {
    const auto number = static_cast<size_t>(&step - plan.steps().data());
    const std::string& form = plan.prepared()[number].form;
    std::vector<const Value*> outputs;
    double bytes = 0;
    for (const Value* output : step.node->outputs()) {
      if (!output) continue;
      outputs.push_back(output);
      bytes += known_bytes(*output);
    }
    total += bytes;
    table.add({std::to_string(number), operator_text(*step.node), first_few(outputs, kMaxOutputs, typed_name),
               format_bytes(bytes), kernel_name(step) + (form.empty() ? "" : ", " + form),
               profiled ? format_number(step.milliseconds / plan.profiled_runs()) : ""});
  }
  const std::string sums = concat(plan.steps().size(), " nodes write ", format_bytes(total), "; arena ",
                                  format_bytes(static_cast<double>(plan.arena_bytes())), ", of it workspace ",
                                  format_bytes(static_cast<double>(plan.workspace_bytes())), "; constants ",
                                  format_bytes(static_cast<double>(plan.constant_bytes())));
  return concat(table.text(0, width), wrap(sums, width, 0, 2), "\n");
}

std::string passes_table(const Plan& plan, size_t width) {
  TextTable table("llrrrl");
  table.add({"phase", "pass", "nodes", "after", "ms", "numbers"});
  double total = 0;
  std::string phase;
  for (const PassTiming& pass : plan.passes()) {
    const bool changed = pass.changed || pass.nodes_before != pass.nodes_after;
    const auto shown = [&](size_t nodes) { return changed ? std::to_string(nodes) : "-"; };
    table.add({pass.phase == phase ? "" : pass.phase, pass.name, shown(pass.nodes_before), shown(pass.nodes_after),
               format_number(pass.milliseconds), pass.numbers});
    phase = pass.phase;
    total += pass.milliseconds;
  }
  return concat(table.text(0, width), plan.passes().size(), " passes in ", format_number(total), " ms\n");
}

std::string plan_json(const Plan& plan, const std::function<double(const NodeCost&)>& least_milliseconds) {
  using nlohmann::json;
  json nodes = json::array();
  for (const PlanStep& step : plan.steps()) {
    const NodeCost cost = cost_of(*step.node);
    json flops = json::object();
    for (const auto& [dtype, count] : cost.flops) flops[name(dtype)] = count;
    nodes.push_back({{"index", nodes.size()},
                     {"op", step.node->op()},
                     {"name", step.node->name()},
                     {"kernel", kernel_name(step)},
                     {"form", plan.prepared()[nodes.size()].form},
                     {"ms", step.milliseconds / std::max(plan.profiled_runs(), 1)},
                     {"flops", std::move(flops)},
                     {"bytes", cost.bytes},
                     {"roofline_ms", least_milliseconds ? least_milliseconds(cost) : 0.0}});
  }
  return nodes.dump();
}

std::string recomputation_text(const Plan& plan, size_t budget, size_t width) {
  if (budget == 0) return "";
  const Recomputation& r = plan.recomputation();
  std::string text =
      concat("memory for gradients and activations: ", format_bytes(static_cast<double>(plan.arena_bytes())),
             " planned, ", format_bytes(static_cast<double>(budget)), " allowed");
  if (r.nodes == 0) return wrap(text + "; nothing has to be recomputed", width, 0, 2) + "\n";
  double flops = 0;
  for (const PlanStep& step : plan.steps()) flops += cost_of(*step.node).total_flops();
  std::string operators;
  for (const auto& [op, count] : r.operators) operators += concat(operators.empty() ? "" : ", ", count, " ", op);
  const std::string nodes = concat("recomputed: ", r.nodes, " nodes (", operators, ")"),
                    price = concat("it costs ", format_count(r.flops), "FLOP (",
                                   format_number(100 * r.flops / std::max(flops - r.flops, 1.0)), "% more) and ",
                                   format_bytes(r.bytes), " of other reads and writes a step; values alive at once ",
                                   format_bytes(static_cast<double>(r.before)), " -> ",
                                   format_bytes(static_cast<double>(r.after)));
  return concat(wrap(text, width, 0, 2), "\n", wrap(nodes, width, 0, 2), "\n", wrap(price, width, 0, 2), "\n");
}

std::string memory_chart(const Plan& plan, size_t width) {
  const size_t columns = width == 0 ? kColumns : std::clamp<size_t>(width - std::min(width, kFrame), 1, kColumns);
  const auto& ranges = plan.live_ranges();
  const auto& offsets = plan.memory().offsets;
  const double arena = static_cast<double>(std::max<size_t>(plan.arena_bytes(), 1));
  const double steps = static_cast<double>(std::max<size_t>(plan.steps().size(), 1));
  // A cell shows the buffer at its middle: the letter of a large buffer, '.' for others.
  std::vector<size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ranges[a].bytes > ranges[b].bytes; });
  std::vector<std::string> canvas(kLines, std::string(columns, ' '));
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const LiveRange& range = ranges[order[rank]];
    const char mark = rank < kLargest ? static_cast<char>('A' + rank) : '.';
    for (size_t line = 0; line < kLines; ++line) {
      const double offset = (static_cast<double>(kLines - 1 - line) + 0.5) / kLines * arena;
      const auto begin = static_cast<double>(offsets[order[rank]]);
      if (offset < begin || offset >= begin + static_cast<double>(range.bytes)) continue;
      for (size_t column = 0; column < columns; ++column) {
        const double time = (static_cast<double>(column) + 0.5) / static_cast<double>(columns) * steps;
        if (time >= range.first && time < range.last + 1) canvas[line][column] = mark;
      }
    }
  }
  std::string text = concat("arena of ", format_bytes(arena), " over ", plan.steps().size(), " nodes\n");
  for (const std::string& line : canvas) text += concat("  |", line, "|\n");
  TextTable largest("lrrrw");
  largest.add({"", "bytes", "offset", "nodes", "buffer"});
  for (size_t rank = 0; rank < std::min(kLargest, order.size()); ++rank) {
    const LiveRange& range = ranges[order[rank]];
    const std::string name = order[rank] < plan.range_names().size() ? plan.range_names()[order[rank]] : "";
    largest.add({std::string(1, static_cast<char>('A' + rank)), format_bytes(static_cast<double>(range.bytes)),
                 format_bytes(static_cast<double>(offsets[order[rank]])), concat(range.first, "-", range.last), name});
  }
  return text + largest.text(2, width);
}

}  // namespace onnx_train
