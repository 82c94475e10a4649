// The kernel of `Fused`, the function that fuse_elementwise makes of each fusion region: generated for the region
// (source.h) and compiled when the plan is made (compiler.h).
#include "kernels/cuda/fused/fused.h"

#include <algorithm>
#include <memory>

#include "kernels/cuda/fused/compiler.h"
#include "kernels/cuda/fused/source.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduction/reductions.h"
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

class Fused {
 public:
  Fused(const NodeSpec& spec, FusedSourceText source)
      : places_(std::move(source.arguments)),
        threads_(source.threads),
        inputs_(spec.num_inputs()),
        outputs_(spec.num_outputs()),
        addresses_(places_.size() + 1) {
    workspace_.reserve(source.workspace);
    const auto writes = [](const OperandPlace& place) { return place.kind != OperandPlace::kInput; };
    if (std::any_of(places_.begin(), places_.end(), writes)) kernel_ = shared_kernel(source.text);
    for (const void*& address : addresses_) arguments_.push_back(&address);
    for (const FinalReduction& reduction : source.reductions) {
      const Prepared prepared = prepare_reduction(*reduction.node, reduction.stored);
      reductions_.push_back({prepared.run, reduction.from, workspace_.reserve(prepared.workspace), reduction.output});
    }
  }

  size_t workspace() const { return workspace_.bytes(); }

  void run(const Launch& launch) {
    addresses_[0] = guard_of(launch, inputs_, outputs_);
    for (size_t i = 0; i < places_.size(); ++i) addresses_[i + 1] = address(places_[i], launch);
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
  const int64_t threads_;
  const int inputs_, outputs_;
  Workspace workspace_;
  std::vector<Reduction> reductions_;
  std::vector<const void*> addresses_;  // addresses of the current run
  std::vector<void*> arguments_;        // pointers to `addresses_`
};

bool supports_fused(const NodeSpec& spec) { return has_compiler() && read_body(spec, can_generate).has_value(); }

Prepared prepare_fused(const NodeSpec& spec) {
  const std::optional<FusedBody> body = read_body(spec, can_generate);
  if (!body) fail(spec.node().label(), ": its body is not one fusion region of element-wise nodes");
  FusedSourceText source = fused_source(spec, *body);
  std::vector<InPlace> in_place = std::move(source.in_place);
  const auto fused = std::make_shared<Fused>(spec, std::move(source));
  return {[fused](const Launch& launch) { fused->run(launch); }, fused->workspace(), std::move(in_place)};
}

}  // namespace

bool can_fuse(const Node& node) { return has_compiler() && can_generate(node); }

std::vector<Kernel> fused_kernels() { return {{"Fused", supports_fused, prepare_fused, kDomain}}; }

}  // namespace onnx_train::cuda
