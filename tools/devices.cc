#include "kernels/device.h"

#include <algorithm>
#include <set>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "runtime/support/report_text.h"
#include "tools/report/output.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct DevicesArguments {
  bool operators = false;
};

// A device that cannot be used is listed with the reason.
std::string describe(const std::string& name) {
  try {
    return Device::find(name).description();
  } catch (const Error& error) {
    return concat("not available: ", error.what());
  }
}

// The names of the devices: with a number where a module has several.
std::vector<std::string> numbered_names() {
  std::vector<std::string> names;
  for (const std::string& name : Device::names()) {
    int count = 1;
    try {
      count = Device::find(name).count();
    } catch (const Error&) {  // `describe` tells
    }
    if (count == 1) names.push_back(name);
    for (int number = 0; count > 1 && number < count; ++number) names.push_back(concat(name, ":", number));
  }
  return names;
}

// The devices that can be used, one of each module.
std::vector<const Device*> available_devices() {
  std::vector<const Device*> devices;
  for (const std::string& name : Device::names()) {
    try {
      devices.push_back(&Device::find(name));
    } catch (const Error&) {  // `describe` has told
    }
  }
  return devices;
}

// The kernels of an operator in the order of preference. Without any, an operator of ours runs as the standard
// operators of its body.
std::string kernels_of(const Device& device, const std::string& domain, const std::string& op) {
  std::vector<std::string> names;
  for (const Kernel* kernel : device.kernels().rows(domain, op)) {
    const std::string name = *kernel->name ? kernel->name : kernel->op;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  if (names.empty()) return domain == kDomain ? "its body" : "-";
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

void print_operators() {
  const std::vector<const Device*> devices = available_devices();
  std::set<std::pair<std::string, std::string>> operators;
  for (const Device* device : devices) {
    for (const Kernel* kernel : device->kernels()) operators.emplace(kernel->domain, kernel->op);
  }
  TextTable table("l" + std::string(devices.size(), 'w'));
  std::vector<std::string> header = {concat(operators.size(), " operators")};
  for (const Device* device : devices) header.push_back(device->name());
  table.add(header);
  for (const auto& [domain, op] : operators) {
    std::vector<std::string> row = {domain.empty() ? op : concat(domain, ".", op)};
    for (const Device* device : devices) row.push_back(kernels_of(*device, domain, op));
    table.add(row);
  }
  print(table.text(0, table_width()));
}

int run(const DevicesArguments& arguments) {
  TextTable table("lw");
  for (const std::string& name : numbered_names()) table.add({name, describe(name)});
  print(table.text(0, text_width()));
  if (arguments.operators) print_operators();
  return 0;
}

}  // namespace

Subcommand devices_command() {
  auto arguments = std::make_shared<DevicesArguments>();
  return {"devices",
          "The devices of this installation, for --device",
          "  onnx-train devices\n"
          "  onnx-train devices --operators",
          {{"--operators", &arguments->operators, "the operators, with the kernels of each device that can be used"}},
          [arguments] { return run(*arguments); }};
}

}  // namespace onnx_train
