#include "onnx_passes/operators/epilogue.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/name_list.h"
#include "onnx_passes/operators/shape_contract.h"

namespace onnx_train {
namespace {

// In the order of EpilogueStep.
constexpr std::array kEpilogueSteps = {
    EpilogueStepRow{EpilogueStep::kBias, "bias", "bias"},
    EpilogueStepRow{EpilogueStep::kResidual, "residual", "residual"},
    EpilogueStepRow{EpilogueStep::kKeep, "keep", nullptr, "kept"},
    EpilogueStepRow{EpilogueStep::kRelu, "relu"},
    EpilogueStepRow{EpilogueStep::kGelu, "gelu"},
    EpilogueStepRow{EpilogueStep::kGeluTanh, "gelu_tanh"},
    EpilogueStepRow{EpilogueStep::kReluGradient, "relu_gradient", "at"},
    EpilogueStepRow{EpilogueStep::kGeluGradient, "gelu_gradient", "at"},
    EpilogueStepRow{EpilogueStep::kGeluTanhGradient, "gelu_tanh_gradient", "at"},
    EpilogueStepRow{EpilogueStep::kSumsOfA, "sums_of_a", nullptr, "sums"},
    EpilogueStepRow{EpilogueStep::kSumsOfB, "sums_of_b", nullptr, "sums"},
};

// `of` names the node.
Epilogue parse_epilogue(std::string_view text, const std::string& of) {
  Epilogue steps;
  for (const std::string& name : split_names(text)) {
    const auto* const row = std::find_if(kEpilogueSteps.begin(), kEpilogueSteps.end(),
                                         [&](const EpilogueStepRow& r) { return r.name == name; });
    if (row == kEpilogueSteps.end()) fail(of, ": its epilogue has an unknown step '", name, "'");
    steps.push_back(row->step);
  }
  return steps;
}

// Checks the inputs, or the outputs, that steps have: `name` is the column of a step's row, `place` finds a place.
template <typename Place>
void check_values(const Node& node, const Epilogue& steps, const Epilogue& possible, const char* kind,
                  const char* EpilogueStepRow::*name, const std::vector<Value*>& values, const Place& place_of) {
  const auto place = [&](const char* value) {
    const int at = place_of(value);
    return at >= 0 && static_cast<size_t>(at) < values.size() && values[static_cast<size_t>(at)] ? at : -1;
  };
  std::set<int> used;
  for (const EpilogueStep step : steps) {
    const char* const value = row_of(step).*name;
    if (!value) continue;
    const int at = place(value);
    if (at < 0)
      fail(node.label(), ": step '", row_of(step).name, "' of its epilogue lacks the ", kind, " '", value, "'");
    if (!used.insert(at).second) fail(node.label(), ": two steps of its epilogue have the ", kind, " '", value, "'");
  }
  for (const EpilogueStep step : possible) {
    const char* const value = row_of(step).*name;
    const int at = value ? place(value) : -1;
    if (at >= 0 && !used.count(at)) fail(node.label(), ": no step of its epilogue has the ", kind, " '", value, "'");
  }
}

}  // namespace

const EpilogueStepRow& row_of(EpilogueStep step) { return kEpilogueSteps[static_cast<size_t>(step)]; }

Epilogue epilogue_of(const Node& node) { return parse_epilogue(node.attr(kEpilogue, ""), node.label()); }

Epilogue epilogue_of(const Attrs& attrs) {
  for (const Attr& attr : attrs) {
    if (attr.name == kEpilogue) return parse_epilogue(std::get<std::string>(attr.value), "a call");
  }
  return {};
}

std::string to_string(const Epilogue& epilogue) {
  std::vector<std::string> names;
  for (const EpilogueStep step : epilogue) names.emplace_back(row_of(step).name);
  return join_names(names);
}

bool has_step(const Epilogue& epilogue, EpilogueStep step) {
  return std::find(epilogue.begin(), epilogue.end(), step) != epilogue.end();
}

bool has_step(const Node& node, EpilogueStep step) { return has_step(epilogue_of(node), step); }

bool has_only(const Node& node, const Epilogue& steps) {
  const Epilogue epilogue = epilogue_of(node);
  return std::all_of(epilogue.begin(), epilogue.end(), [&](EpilogueStep step) { return has_step(steps, step); });
}

void check_epilogue(const Node& node, const Epilogue& possible) {
  const Epilogue steps = epilogue_of(node);
  for (const EpilogueStep step : steps) {
    if (!has_step(possible, step)) {
      fail(node.label(), ": its epilogue has the step '", row_of(step).name, "'; there are ",
           possible.empty() ? "none" : to_string(possible));
    }
  }
  const ShapeContract& contract = *find_contract(node.domain(), node.op());
  check_values(node, steps, possible, "input", &EpilogueStepRow::reads, node.inputs(),
               [&](const char* name) { return contract.input(name); });
  check_values(node, steps, possible, "output", &EpilogueStepRow::writes, node.outputs(),
               [&](const char* name) { return contract.output(name); });
}

}  // namespace onnx_train
