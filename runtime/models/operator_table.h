// What is known of every operator that a model may have: its gradient, its kernels by device, whether its gradient has
// one. Everything comes from the tables that the program itself uses (gradient rules, functions, schemas, kernels,
// rewrites of other domains), so that `onnx-train ops` and docs/operators.md cannot differ from it. Pure functions; any
// thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace onnx_train {

struct OperatorEntry {
  std::string domain, op;
  std::string gradient;              // "rule", "function body", "zero", "none: why", "missing: why", ...
  std::string second_order;          // "yes", "no: why"; "-" without a gradient
  std::vector<std::string> kernels;  // by device: names, "body", "view", "folded", "-"
  std::string name() const { return domain.empty() ? op : domain + "." + op; }
};

// All operators of ONNX's own domain in the release that is linked, and those of other domains that importing knows, by
// name. `pattern`: those whose names match; "" for all. Names of other domains begin with them.
std::vector<OperatorEntry> operator_table(const std::vector<const Device*>& devices, const std::string& pattern = "");

// The table as docs/operators.md has it, with a column of the element types that `types` gives for an operator on a
// device: kernels say of a node whether they support it, and the caller has nodes.
using KernelTypes = std::function<std::string(const Device& device, const std::string& op)>;
std::string operator_page(const std::vector<const Device*>& devices, const KernelTypes& types);

}  // namespace onnx_train
