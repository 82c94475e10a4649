#include "kernels/device.h"
#include "onnx_passes/ir/error.h"
#include "runtime/format.h"
#include "tools/report/output.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

// A device that cannot be used is listed with the reason.
std::string describe(const std::string& name) {
  try {
    return Device::find(name).description();
  } catch (const Error& error) {
    return concat("not available: ", error.what());
  }
}

int run() {
  TextTable table("lw");
  for (const std::string& name : Device::names()) table.add({name, describe(name)});
  print(table.text(0, list_width()));
  return 0;
}

}  // namespace

Subcommand devices_command() {
  return {"devices", "The devices of this installation, for --device", "  onnx-train devices", {}, run};
}

}  // namespace onnx_train
