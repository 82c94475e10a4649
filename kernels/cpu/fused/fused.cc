// The kernel of `Fused`, the function that the pass fuse_elementwise makes of each fusion region.
// kernels/geometry/fusion/fused_body.h reads the function, compiler.cc compiles it to a program, executor.cc runs the
// program.
#include <memory>

#include "kernels/cpu/fused/operations.h"
#include "kernels/cpu/fused/program.h"
#include "kernels/cpu/support/kernels.h"
#include "kernels/geometry/fusion/fused_body.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

bool supports_fused(const NodeSpec& spec) { return read_body(spec, can_fuse).has_value(); }

Prepared prepare_fused(const NodeSpec& spec) {
  const auto program = std::make_shared<const Program>(compile_fused(spec));
  const int threads = spec.threads();
  Prepared prepared;
  prepared.workspace = fused_workspace(*program, threads);
  prepared.in_place = program->in_place;
  prepared.run = [program, threads](const Launch& launch) { run_fused(*program, threads, launch); };
  return prepared;
}

}  // namespace

std::vector<Kernel> fused_kernels() { return {{"Fused", supports_fused, prepare_fused, kDomain}}; }

}  // namespace onnx_train::cpu
