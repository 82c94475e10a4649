#include "kernels/registry.h"

#include <algorithm>

#include "kernels/device.h"
#include "kernels/host.h"
#include "kernels/subgraph_calls.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/windows.h"

namespace onnx_train {
namespace {

std::string key(std::string_view domain, std::string_view op) { return concat(domain, ".", op); }

// Calls f() and adds the node's name to errors.
template <typename F>
auto naming(const Node& node, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    if (std::string_view(error.what()).find(node.label()) != std::string_view::npos) throw;
    fail_as(error.code(), node.label(), ": ", error.what());
  } catch (const std::bad_alloc&) {
    fail_as(ErrorCode::kOutOfMemory, node.label(), ": there is not enough memory to prepare it");
  } catch (const std::exception& error) {
    fail(node.label(), ": ", error.what());
  }
}

bool has_variant(const Kernel& kernel, const Node& node) {
  const ImageLayout images = is_channels_last(node) ? ImageLayout::kChannelsLast : ImageLayout::kChannelsFirst;
  if (kernel.images != ImageLayout::kAny && kernel.images != images) return false;
  const std::string epilogue = node.attr(kEpilogue, "");
  return std::find(kernel.epilogues.begin(), kernel.epilogues.end(), epilogue) != kernel.epilogues.end();
}

}  // namespace

KernelTable::KernelTable(std::vector<std::vector<Kernel>> families) : families_(std::move(families)) {
  for (const std::vector<Kernel>& family : families_) {
    for (const Kernel& kernel : family) {
      all_.push_back(&kernel);
      by_operator_[key(kernel.domain, kernel.op)].push_back(&kernel);
    }
  }
}

const std::vector<const Kernel*>& KernelTable::rows(std::string_view domain, std::string_view op) const {
  static const std::vector<const Kernel*> none;
  const auto found = by_operator_.find(key(domain, op));
  return found == by_operator_.end() ? none : found->second;
}

const Kernel* find_kernel(const Device& device, const NodeSpec& spec) {
  const auto& rows = device.kernels().rows(spec.node().domain(), spec.node().op());
  if (rows.empty()) return nullptr;
  check_shapes(spec.node());
  const DeviceScope scope(device);
  return naming(spec.node(), [&]() -> const Kernel* {
    for (const Kernel* kernel : rows) {
      if (has_variant(*kernel, spec.node()) && (!kernel->supports || kernel->supports(spec))) return kernel;
    }
    return nullptr;
  });
}

const Kernel* find_kernel(const Device& device, const Node& node) {
  return find_kernel(device, NodeSpec(node, std::vector<Tensor>(node.inputs().size()), num_threads()));
}

bool needs_channels_first(const Device& device, const Node& node) {
  const auto& rows = device.kernels().rows(node.domain(), node.op());
  return !rows.empty() && std::all_of(rows.begin(), rows.end(),
                                      [](const Kernel* k) { return k->images == ImageLayout::kChannelsFirst; });
}

std::string computation_of(const NodeSpec& spec) {
  const Node& node = spec.node();
  std::string text = concat(node.domain(), ".", node.op(), spec.tf32() ? " tf32" : "",
                            spec.deterministic() ? "\n" : " in any order\n");
  for (const auto& attribute : node.shell().attribute()) text += attribute.ShortDebugString() + "\n";
  const auto add = [&](const Value* value) { text += (value ? to_string(value->type()) : "-") + "\n"; };
  for (const Value* input : node.inputs()) add(input);
  text += "->\n";
  for (const Value* output : node.outputs()) add(output);
  return text;
}

Prepared prepare(const Kernel& kernel, const NodeSpec& spec) {
  return naming(spec.node(), [&] { return kernel.prepare(spec); });
}

void run_now(const Prepared& prepared, const Node& node, const void* const* inputs, void* const* outputs,
             void* workspace) {
  Fault fault;
  prepared.run({inputs, outputs, workspace, nullptr, &fault, 1});
  if (fault.node == 0) return;
  fail_as(ErrorCode::kIndexOutOfRange, node.label(), ": ",
          prepared.explain ? prepared.explain(fault) : "its data are refused");
}

bool may_reject_data(const Device& device, const Node& node) {
  if (node.is(kCallSegment, kDomain) || node.is(kCallLoop, kDomain)) return true;
  const auto& rows = device.kernels().rows(node.domain(), node.op());
  if (std::any_of(rows.begin(), rows.end(), [](const Kernel* k) { return k->input_check == InputCheck::kChecks; }))
    return true;
  for (const auto& subgraph : node.subgraphs()) {
    for (const Node* n = subgraph.graph->first(); n; n = n->next()) {
      if (may_reject_data(device, *n)) return true;
    }
  }
  return false;
}

}  // namespace onnx_train
