#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/models/operator_table.h"
#include "runtime/support/report_text.h"
#include "tools/report/output.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct OpsArguments {
  std::string pattern;
  bool json = false;
};

// The devices that can be used, one of each module.
std::vector<const Device*> usable_devices() {
  std::vector<const Device*> devices;
  for (const std::string& name : Device::names()) {
    try {
      devices.push_back(&Device::find(name));
    } catch (const Error&) {  // `devices` tells why
    }
  }
  return devices;
}

void print_json(const std::vector<OperatorEntry>& table, const std::vector<const Device*>& devices) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const OperatorEntry& entry : table) {
    nlohmann::ordered_json row = {{"operator", entry.op},
                                  {"domain", entry.domain},
                                  {"gradient", entry.gradient},
                                  {"second_order", entry.second_order}};
    for (size_t i = 0; i < devices.size(); ++i) row["kernels"][devices[i]->name()] = entry.kernels[i];
    list.push_back(std::move(row));
  }
  print(list.dump(1) + "\n");
}

int run(const OpsArguments& arguments) {
  const std::vector<const Device*> devices = usable_devices();
  const std::vector<OperatorEntry> table = operator_table(devices, arguments.pattern);
  if (table.empty())
    fail("no operator matches '", arguments.pattern, "'; a pattern is a name with * and ?, as 'Reduce*'");
  if (arguments.json) {
    print_json(table, devices);
    return 0;
  }
  TextTable text("lww" + std::string(devices.size(), 'w'));
  std::vector<std::string> header = {concat(table.size(), table.size() == 1 ? " operator" : " operators"), "gradient",
                                     "second order"};
  for (const Device* device : devices) header.push_back(device->name());
  text.add(header);
  for (const OperatorEntry& entry : table) {
    std::vector<std::string> row = {entry.name(), entry.gradient, entry.second_order};
    row.insert(row.end(), entry.kernels.begin(), entry.kernels.end());
    text.add(row);
  }
  print(text.text(0, table_width()));
  return 0;
}

}  // namespace

Subcommand ops_command() {
  auto a = std::make_shared<OpsArguments>();
  return {"ops",
          "The operators that models may have: gradients, and kernels of each device",
          "  onnx-train ops\n"
          "  onnx-train ops 'Reduce*'\n"
          "  onnx-train ops 'com.microsoft.*' --json",
          {{"PATTERN", &a->pattern, "the operators whose names match, with * and ? [all]", "NAME"},
           {"--json", &a->json, "an array with an object an operator instead of a table"}},
          [a] { return run(*a); }};
}

}  // namespace onnx_train
