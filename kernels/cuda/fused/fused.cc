// The kernels of element-wise nodes, and of `Fused`, the function that fuse_elementwise makes of each fusion region of
// several: generated for the region (source.h) and compiled when the plan is made (compiler.h).
#include <algorithm>
#include <memory>

#include "kernels/cuda/fused/compiler.h"
#include "kernels/cuda/fused/formulas.h"
#include "kernels/cuda/fused/source.h"
#include "kernels/cuda/reduction/reductions.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/launch.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

// A reduction that follows the kernel, and the places of its operands.
struct Reduction {
  std::function<void(const Launch&)> run;
  OperandPlace from, workspace;
  int output;
};

Prepared prepare_reduction(const Node& node, DType stored) {
  std::vector<Tensor> constants(static_cast<size_t>(node.num_inputs()));
  if (node.num_inputs() > 1 && node.input(1)) constants[1] = constant_of(node.input(1));
  const NodeSpec spec(node, std::move(constants), 1);
  if (stored != spec.in_type(0)) return prepare_sum_of(stored, spec.in_shape(0), reduced_axes(spec));
  for (const Kernel& kernel : reduction_kernels()) {
    if (node.op() == kernel.op && kernel.supports(spec)) return kernel.prepare(spec);
  }
  fail(node.label(), ": no kernel for this reduction");
}

class GeneratedKernel {
 public:
  GeneratedKernel(const NodeSpec& spec, FusedSourceText source)
      : places_(std::move(source.arguments)),
        count_(source.count),
        threads_(source.threads),
        inputs_(spec.num_inputs()),
        outputs_(spec.num_outputs()),
        addresses_(places_.size()) {
    workspace_.reserve(source.workspace);
    const auto writes = [](const OperandPlace& place) { return place.kind != OperandPlace::kInput; };
    if (std::any_of(places_.begin(), places_.end(), writes)) kernel_ = shared_kernel(source.text);
    arguments_ = {&guard_, &count_};
    for (const void*& address : addresses_) arguments_.push_back(&address);
    for (const FinalReduction& reduction : source.reductions) {
      const Prepared prepared = prepare_reduction(*reduction.node, reduction.stored);
      reductions_.push_back({prepared.run, reduction.from, workspace_.reserve(prepared.workspace), reduction.output});
    }
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) {
    guard_ = guard_of(launch, inputs_, outputs_);
    for (size_t i = 0; i < places_.size(); ++i) addresses_[i] = address(places_[i], launch);
    if (kernel_) kernel_->run(launch, threads_, arguments_.data());
    for (const Reduction& reduction : reductions_) {
      const void* const in[] = {address(reduction.from, launch), nullptr};
      void* const out[] = {launch.outputs[reduction.output]};
      Launch part = launch;
      part.inputs = in;
      part.outputs = out;
      part.workspace = address(reduction.workspace, launch);
      reduction.run(part);
    }
  }

 private:
  std::shared_ptr<const CompiledKernel> kernel_;  // null if only reductions are left
  const std::vector<OperandPlace> places_;
  int64_t count_;
  const int64_t threads_;
  const int inputs_, outputs_;
  Workspace workspace_;
  std::vector<Reduction> reductions_;
  const Fault* guard_ = nullptr;  // of the current run, like `addresses_`
  std::vector<const void*> addresses_;
  std::vector<void*> arguments_;  // pointers to the kernel's arguments
};

Prepared prepare_region(const NodeSpec& spec, const FusedBody& body) {
  FusedSourceText source = fused_source(spec, body);
  std::vector<InPlace> in_place = std::move(source.in_place);
  const auto kernel = std::make_shared<GeneratedKernel>(spec, std::move(source));
  return {[kernel](const Launch& launch) { kernel->run(launch); }, kernel->workspace(), std::move(in_place)};
}

bool supports_fused(const NodeSpec& spec) { return read_body(spec, can_fuse).has_value(); }

Prepared prepare_fused(const NodeSpec& spec) {
  const std::optional<FusedBody> body = read_body(spec, can_fuse);
  if (!body) fail(spec.node().label(), ": its body is not one fusion region of element-wise nodes");
  return prepare_region(spec, *body);
}

bool supports_node(const NodeSpec& spec) { return has_formula(spec.node()); }

Prepared prepare_node(const NodeSpec& spec) {
  if (spec.out_size() == 0) return {[](const Launch&) {}};
  return prepare_region(spec, body_of_node(spec));
}

}  // namespace

std::vector<Kernel> elementwise_kernels() {
  std::vector<Kernel> rows = {{"Fused", supports_fused, prepare_fused, kDomain}};
  for (const auto& [op, domain] : elementwise_operators()) rows.push_back({op, supports_node, prepare_node, domain});
  return rows;
}

}  // namespace onnx_train::cuda
