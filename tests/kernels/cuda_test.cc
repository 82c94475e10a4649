// The CUDA device: sessions with captured runs. On the host, and in gpu_tests on a GPU.
#include <gtest/gtest.h>

#include "kernels/cuda/support/device.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"
#include "tests/support/device_network.h"
#include "tests/support/error_of.h"
#include "tests/support/sessions.h"

namespace onnx_train::cuda_test {
namespace {

double step(Session& session, int64_t label = 1) { return session.run("step", batch(label)).at("loss").at(0); }

TEST(Cuda, LossesAreThoseOfTheCpuAndEqualInBitsFromRunToRunAndWithoutCapture) {
  const Model model = network();
  SessionOptions node_by_node = on(&cuda_device());
  node_by_node.plan.lowering.without = {kReplay};
  Session session(clone(model), on(&cuda_device())), again(clone(model), on(&cuda_device())),
      uncaptured(clone(model), node_by_node), expected(clone(model), on(&Device::cpu()));
  for (int i = 0; i < 12; ++i) {
    const double loss = step(session, i);
    EXPECT_NEAR(loss, step(expected, i), 1e-5) << i;
    EXPECT_EQ(loss, step(again, i)) << i;
    EXPECT_EQ(loss, step(uncaptured, i)) << i;
  }
  expect_equal(states_of(session), states_of(again));
  expect_equal(states_of(session), states_of(uncaptured));
}

// The CPU's lowering makes operators that a graph for CUDA does not hold: ONNX's own in our domain, which read or write
// 16-bit storage or images that lie channels last.
TEST(Cuda, EveryOperatorOfTheCpuHasAKernel) {
  const KernelTable& table = cuda_device().kernels();
  for (const Kernel* kernel : Device::cpu().kernels()) {
    const bool is_form = *kernel->domain && !table.rows("", kernel->op).empty();
    EXPECT_TRUE(!table.rows(kernel->domain, kernel->op).empty() || is_form) << kernel->domain << "." << kernel->op;
  }
}

TEST(Cuda, AStepWithALabelOutOfRangeLeavesTheStateAsItWas) {
  Session session(network(), on(&cuda_device()));
  for (int i = 0; i < 3; ++i) {
    step(session);
    const auto before = states_of(session);
    session.start("step", batch(99));
    session.start("step", batch());
    try {
      session.finish();
      ADD_FAILURE() << "a label of 99 is taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorCode::kData);
      EXPECT_NE(std::string(error.what()).find("label 99 at position 63"), std::string::npos) << error.what();
    }
    expect_equal(states_of(session), before);
  }
}

}  // namespace
}  // namespace onnx_train::cuda_test
