// The CUDA device on the host: sessions with captured runs, and what happens when a call of the runtime fails.
#include "kernels/cuda/device.h"

#include <gtest/gtest.h>

#include <set>

#include "onnx_passes/ir/error.h"
#include "runtime/session.h"
#include "tests/cuda_on_host/runtime.h"
#include "tests/sessions.h"
#include "tests/transformer.h"

namespace onnx_train {
namespace {

constexpr int64_t kBatch = 4, kTokens = 16;

TensorMap batch(int64_t label = 1) {
  const Shape shape = {kBatch, kTokens};
  Tensor tokens(DType::kInt64, shape), labels(DType::kInt64, shape);
  for (int64_t i = 0; i < tokens.size(); ++i) {
    tokens.set(i, static_cast<double>(i * 7 % 16));
    labels.set(i, static_cast<double>(i * 5 % 16));
  }
  labels.set(labels.size() - 1, static_cast<double>(label));
  return {{"tokens", tokens}, {"labels", labels}};
}

Model network() { return make_training_transformer({.blocks = 1, .width = 32, .tokens = kTokens}); }

SessionOptions on(Device* device) {
  SessionOptions options;
  options.device = device;
  return options;
}

double step(Session& session, int64_t label = 1) { return session.run("step", batch(label)).at("loss").at(0); }

TEST(CudaOnHost, LossesAreThoseOfTheCpuAndEqualInBitsFromRunToRunAndWithoutCapture) {
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

// The CPU's lowering makes operators that a graph for CUDA does not hold: those named here, and ONNX's own in our
// domain, which read or write 16-bit storage or images that lie channels last.
TEST(CudaOnHost, EveryOperatorOfTheCpuHasAKernelButThoseNamedHere) {
  const std::set<std::string> made_by_lowering = {"BlockAttention", "BlockAttentionGrad"};
  const KernelTable& table = cuda_device().kernels();
  for (const Kernel* kernel : Device::cpu().kernels()) {
    const bool is_form = *kernel->domain && !table.rows("", kernel->op).empty();
    EXPECT_NE(table.rows(kernel->domain, kernel->op).empty() && !is_form, !made_by_lowering.contains(kernel->op))
        << kernel->domain << "." << kernel->op;
  }
}

TEST(CudaOnHost, AStepWithALabelOutOfRangeLeavesTheStateAsItWas) {
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
      EXPECT_EQ(error.code(), ErrorCode::kData);
      EXPECT_NE(std::string(error.what()).find("label 99 at position 63"), std::string::npos) << error.what();
    }
    expect_equal(states_of(session), before);
  }
}

// Makes call number n of the runtime fail while `run` runs, for all n. Returns how many were refused.
int fail_each_call(Session& session, const std::function<void()>& run) {
  const auto before = states_of(session);
  int refused = 0;
  for (int64_t n = 0;; ++n) {
    const int64_t first = gpu_host::calls();
    gpu_host::fail_call(n);
    bool failed = false;
    try {
      run();
    } catch (const Error& error) {
      failed = true;
      EXPECT_EQ(error.code(), ErrorCode::kDevice) << error.what();
      const std::string message = error.what();
      EXPECT_TRUE(message.find("CUDA: ") != std::string::npos || message.find("cuBLASLt: ") != std::string::npos)
          << message;
    }
    const bool reached = gpu_host::calls() - first > n;
    gpu_host::fail_call(-1);
    if (!reached) return refused;
    refused += failed;
    if (failed) expect_equal(states_of(session), before);
    if (testing::Test::HasFailure()) return refused;
  }
}

TEST(CudaOnHost, ACallThatFailsLeavesTheStateAsItWasAndSaysSo) {
  for (const bool warm : {false, true}) {
    const Model model = network();
    Session session(clone(model), on(&cuda_device()));
    if (warm) session.run("evaluate", batch());
    const int refused = fail_each_call(session, [&] { session.run("evaluate", batch()); });
    EXPECT_GT(refused, warm ? 3 : 20);
  }
}

TEST(CudaOnHost, AStepWhoseCallFailsChangesNothing) {
  const Model model = network();
  for (const bool warm : {false, true}) {
    Session expected(clone(model), on(&cuda_device()));
    if (warm) step(expected);
    const auto before = states_of(expected);
    step(expected);
    const auto after = states_of(expected);
    int refused = 0;
    bool reached = true;
    // A session whose step has failed at any call goes on as if nothing had happened.
    for (int64_t n = 0; reached; n += warm ? 1 : 29) {
      Session session(clone(model), on(&cuda_device()));
      if (warm) step(session);
      const int64_t first = gpu_host::calls();
      gpu_host::fail_call(n);
      bool failed = false;
      try {
        step(session);
      } catch (const Error& error) {
        failed = true;
        EXPECT_EQ(error.code(), ErrorCode::kDevice) << error.what();
      }
      reached = gpu_host::calls() - first > n;
      gpu_host::fail_call(-1);
      if (!reached) break;
      if (!failed) continue;  // a destructor's call
      ++refused;
      const auto now = states_of(session);
      // When only the wait for the results fails, the step has been done.
      if (now.at("state/step").at(0) == before.at("state/step").at(0)) {
        expect_equal(now, before);
        step(session);
      }
      expect_equal(states_of(session), after);
      if (HasFailure()) {
        ADD_FAILURE() << "call " << n;
        return;
      }
    }
    EXPECT_GT(refused, 3);
  }
}

TEST(CudaOnHost, TooLittleMemoryIsOneError) {
  const size_t objects = gpu_host::live_objects();
  gpu_host::set_memory_bytes(200 << 10);
  try {
    Session session(network(), on(&cuda_device()));
    step(session);
    ADD_FAILURE() << "200 KiB suffice";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMemory) << error.what();
  }
  gpu_host::set_memory_bytes(size_t{4} << 30);
  EXPECT_EQ(gpu_host::live_objects(), objects);
}

TEST(CudaOnHost, NothingIsLeftAllocated) {
  cuda_device();
  const size_t objects = gpu_host::live_objects();
  {
    Session session(network(), on(&cuda_device()));
    step(session);
    session.start("evaluate", batch());  // never finished
    EXPECT_GT(gpu_host::live_objects(), objects);
  }
  EXPECT_EQ(gpu_host::live_objects(), objects);
}

}  // namespace
}  // namespace onnx_train
