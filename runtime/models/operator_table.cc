#include "runtime/models/operator_table.h"

#include <onnx/defs/schema.h>

#include <algorithm>
#include <map>
#include <set>

#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/gradients/without_gradient.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/select.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/random.h"
#include "onnx_passes/operators/standard_bodies.h"

namespace onnx_train {
namespace {

// The newest schema of each operator of ONNX's own domain that is not deprecated.
std::map<std::string, const onnx::OpSchema*> newest_schemas() {
  std::map<std::string, const onnx::OpSchema*> newest;
  for (const onnx::OpSchema& listed : onnx::OpSchemaRegistry::get_all_schemas()) {
    if (!listed.domain().empty()) continue;
    const onnx::OpSchema* schema = onnx::OpSchemaRegistry::Schema(listed.Name(), "");
    if (schema && !schema->Deprecated()) newest[listed.Name()] = schema;
  }
  return newest;
}

bool has_body(const onnx::OpSchema& schema) {
  return schema.HasFunction() || schema.HasContextDependentFunction() || has_standard_body(schema.Name());
}

bool may_be_float(const std::vector<onnx::OpSchema::FormalParameter>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const auto& parameter) {
    const auto& types = parameter.GetTypes();
    return std::any_of(types.begin(), types.end(),
                       [](const std::string* type) { return type->find("tensor(float)") != std::string::npos; });
  });
}

const GradientRule* rule_of(const std::string& op) {
  for (const GradientRule* rule : gradient_rules()) {
    if (op == rule->op && !*rule->domain) return rule;
  }
  return nullptr;
}

std::string gradient_of(const onnx::OpSchema& schema) {
  if (const GradientRule* rule = rule_of(schema.Name())) return rule->trait == Trait::kZero ? "zero" : "rule";
  if (!may_be_float(schema.outputs())) return "none: its outputs are no floats";
  if (!may_be_float(schema.inputs())) return "none: its inputs are no floats";
  if (has_body(schema)) return "function body";
  if (const WithoutGradient* row = find_without_gradient(schema.Name())) {
    const char* what = row->what == Without::kGradient ? "none: " : row->what == Without::kYet ? "missing: " : "";
    return concat(what, row->reason);
  }
  return "missing";
}

// What is wrong, without the way out.
std::string first_part(const std::string& refusal) { return refusal.substr(0, refusal.find("; ")); }

constexpr const char* kStandard = "standard operators";

bool has_gradient(const OperatorEntry& entry) {
  return entry.gradient == "rule" || entry.gradient == "function body" || entry.gradient == kStandard;
}

std::string second_order_of(const OperatorEntry& entry) {
  if (!has_gradient(entry)) return "-";
  const WithoutGradient* row = entry.domain.empty() ? find_without_gradient(entry.op, /*second_order=*/true) : nullptr;
  return row ? concat("no: ", row->reason) : "yes";
}

std::string kernels_of(const Device& device, const onnx::OpSchema& schema) {
  std::string names;
  std::set<std::string> listed;
  for (const Kernel* kernel : device.kernels().rows("", schema.Name())) {
    const std::string name = *kernel->name ? kernel->name : kernel->op;
    if (listed.insert(name).second) names += (names.empty() ? "" : ", ") + name;
  }
  if (!names.empty()) return names;
  const Operator* row = find_operator("", schema.Name());
  if (row && row->kind == OperatorKind::kView) return "view";
  if (row && row->traffic == Traffic::kNone) return "folded";
  return has_body(schema) || is_random_operator(schema.Name()) ? "body" : "-";
}

}  // namespace

std::vector<OperatorEntry> operator_table(const std::vector<const Device*>& devices, const std::string& pattern) {
  std::vector<OperatorEntry> table;
  for (const auto& [op, schema] : newest_schemas()) {
    OperatorEntry entry{"", op, gradient_of(*schema), "", {}};
    entry.second_order = second_order_of(entry);
    for (const Device* device : devices) entry.kernels.push_back(kernels_of(*device, *schema));
    table.push_back(std::move(entry));
  }
  for (const ForeignRow* row : foreign_rows()) {
    OperatorEntry entry{
        row->domain, row->op, row->rewrite ? kStandard : concat("none: ", first_part(row->refusal)), "", {}};
    entry.second_order = second_order_of(entry);
    entry.kernels.assign(devices.size(), row->rewrite ? "body" : "-");
    table.push_back(std::move(entry));
  }
  std::erase_if(table, [&](const OperatorEntry& entry) {
    return !pattern.empty() && !matches(pattern, entry.name()) && !matches(pattern, entry.op);
  });
  return table;
}

namespace {

// "floats", or "floats; cuda: float32" where a device's kernels take others than those of the first device.
std::string types_of(const OperatorEntry& entry, const std::vector<const Device*>& devices, const KernelTypes& types) {
  if (!entry.domain.empty() || devices.empty()) return "-";
  const std::string first = types(*devices[0], entry.op);
  std::string text = first.empty() ? "-" : first;
  for (const Device* device : devices) {
    const std::string own = types(*device, entry.op);
    if (own != first) text += concat("; ", device->name(), ": ", own.empty() ? "-" : own);
  }
  return text;
}

}  // namespace

std::string operator_page(const std::vector<const Device*>& devices, const KernelTypes& types) {
  const std::vector<OperatorEntry> table = operator_table(devices);
  std::string header = "| operator | gradient | second order |", line = "| --- | --- | --- |", rows;
  for (const Device* device : devices) {
    header += concat(" ", device->name(), " |");
    line += " --- |";
  }
  header += " types |";
  line += " --- |";
  std::map<std::string, int> counts;  // by the first word of the gradient's column
  for (const OperatorEntry& entry : table) {
    if (entry.domain.empty()) ++counts[entry.gradient.substr(0, entry.gradient.find(':'))];
    rows += concat("| ", entry.name(), " | ", entry.gradient, " | ", entry.second_order, " |");
    for (const std::string& kernels : entry.kernels) rows += concat(" ", kernels, " |");
    rows += concat(" ", types_of(entry, devices, types), " |\n");
  }
  return concat("Of ONNX's own operators, ", counts["rule"], " have a rule, ", counts["function body"],
                " the gradient of their function body, ", counts["zero"], " one that is zero; ", counts["missing"],
                " miss one.\n\n", header, "\n", line, "\n", rows);
}

}  // namespace onnx_train
