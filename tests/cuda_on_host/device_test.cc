// The CUDA device on the host: behaviour when a call of the runtime fails, and of work that runs late.
#include "kernels/cuda/support/device.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cuda/support/stream.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"
#include "runtime/training/batch_search.h"
#include "runtime/training/run_memory.h"
#include "tests/cuda_on_host/failing_call.h"
#include "tests/cuda_on_host/runtime.h"
#include "tests/support/device_network.h"
#include "tests/support/sessions.h"

namespace onnx_train::device_test {
namespace {

double step(Session& session, int64_t label = 1) { return session.run("step", batch(label)).at("loss").at(0); }

// Makes call n of the runtime fail during `run`, for all n. Returns the number of failed runs.
int fail_each_call(Session& session, const std::function<void()>& run) {
  const auto before = states_of(session);
  int refused = 0;
  for (int64_t n = 0;; ++n) {
    const auto [reached, error] = run_with_failing_call(n, run);
    if (error) {
      const std::string message = error->what();
      EXPECT_EQ(error->kind(), ErrorCode::kDevice) << message;
      EXPECT_TRUE(message.find("CUDA: ") != std::string::npos || message.find("cuBLASLt: ") != std::string::npos)
          << message;
    }
    if (!reached) return refused;
    refused += error.has_value();
    if (error) expect_equal(states_of(session), before);
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
    // A session continues after a step that fails at any call; its states are then those without the failure.
    for (int64_t n = 0;; n += warm ? 1 : 29) {
      Session session(clone(model), on(&cuda_device()));
      if (warm) step(session);
      const auto [reached, error] = run_with_failing_call(n, [&] { step(session); });
      if (error) {
        EXPECT_EQ(error->kind(), ErrorCode::kDevice) << error->what();
      }
      if (!reached) break;
      if (!error) continue;  // the call was in a destructor
      ++refused;
      const auto now = states_of(session);
      // The step has run if only the wait for its results failed.
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
    EXPECT_EQ(error.kind(), ErrorCode::kMemory) << error.what();
  }
  gpu_host::set_memory_bytes(size_t{4} << 30);
  EXPECT_EQ(gpu_host::live_objects(), objects);
}

// What is planned fits without one refused allocation, and a twentieth more does not.
TEST(CudaOnHost, TheLargestBatchFits) {
  gpu_host::set_memory_bytes(8 << 20);
  {
    Session session(network(), on(&cuda_device()));
    const Shape shape = {4096, kDeviceTestTokens};
    const Dataset data({{"tokens", Tensor(DType::kInt64, shape)}, {"labels", Tensor(DType::kInt64, shape)}},
                       entry_inputs(session.model(), "step"));
    const FoundBatch found = find_largest_batch(&session, {data});
    EXPECT_EQ(found.bound, "the memory");
    EXPECT_GT(found.batch, 8);
    EXPECT_LE(found.planned, found.limit);
    session.plan("step", batch_shapes(data, data.num_samples() % found.batch));
    session.plan("step", batch_shapes(data, found.batch));
    EXPECT_THROW(session.plan("step", batch_shapes(data, found.batch + found.batch / 20 + 1)), Error);
  }
  gpu_host::set_memory_bytes(size_t{4} << 30);
}

TEST(CudaOnHost, InputsInDeviceMemoryGiveTheBitsOfInputsOnTheHost) {
  const Model model = network();
  Session session(clone(model), on(&cuda_device())), expected(clone(model), on(&cuda_device()));
  EXPECT_EQ(cuda_device().dlpack().type, kDlpackCuda);
  EXPECT_NE(session.stream().native_handle(), nullptr);
  for (int i = 0; i < 3; ++i) {
    const DeviceCopies copies(cuda_device(), batch(i));
    EXPECT_EQ(session.run("step", copies.tensors()).at("loss").at(0), step(expected, i));
  }
  const DeviceCopies out_of_range(cuda_device(), batch(99));
  EXPECT_THROW(session.run("step", out_of_range.tensors()), Error);
  expect_equal(states_of(session), states_of(expected));
}

TEST(CudaOnHost, AStepWhoseNodesAreTimedGivesTheBitsOfTheStep) {
  const Model model = network();
  Session session(clone(model), on(&cuda_device())), expected(clone(model), on(&cuda_device()));
  Plan& plan = session.plan("step", shapes_of(batch()));
  plan.set_profiling(true);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(step(session, i), step(expected, i));
  plan.set_profiling(false);
  EXPECT_EQ(step(session), step(expected));
  expect_equal(states_of(session), states_of(expected));
  EXPECT_EQ(plan.profiled_runs(), 2);
  double end = 0;
  for (const PlanStep& node : plan.steps()) {
    EXPECT_EQ(node.last_start, end);
    EXPECT_GT(node.last_milliseconds, 0) << node.node->label();
    end += node.last_milliseconds;
  }
  plan.set_profiling(true);
  EXPECT_THROW(step(session, 99), Error);
  plan.set_profiling(false);
  expect_equal(states_of(session), states_of(expected));
}

int device_of_this_thread() {
  int number = -1;
  EXPECT_EQ(cudaGetDevice(&number), cudaSuccess);
  return number;
}

// The host has two devices and refuses work on one with memory or handles of the other.
TEST(CudaOnHost, EachDeviceDoesItsOwnWorkWhateverTheThreadsDeviceIs) {
  const Model model = network();
  Session first(clone(model), on(&cuda_device(0)));
  std::map<std::string, Tensor> states[2];
  {
    Session second(clone(model), on(&cuda_device(1)));
    EXPECT_EQ(second.device().name(), "cuda:1");
    EXPECT_EQ(second.device().dlpack().id, 1);
    EXPECT_EQ(second.device().count(), 2);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(cudaSetDevice(i % 2), cudaSuccess);  // like other libraries in the process
      EXPECT_EQ(step(first, i), step(second, i));
      first.start("evaluate", batch(i));
      second.start("evaluate", batch(i));
      ASSERT_EQ(cudaSetDevice(1 - i % 2), cudaSuccess);
      EXPECT_EQ(first.finish().at("loss").at(0), second.finish().at("loss").at(0));
      const DeviceCopies copies(cuda_device(1), batch(i));
      EXPECT_EQ(second.run("step", copies.tensors()).at("loss").at(0), step(first, i));
      EXPECT_EQ(device_of_this_thread(), 1 - i % 2);
    }
    second.plan("step", shapes_of(batch())).set_profiling(true);
    EXPECT_EQ(step(first), step(second));
    expect_equal(states_of(first), states_of(second));
    EXPECT_EQ(device_of_this_thread(), 1);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }
  EXPECT_EQ(device_of_this_thread(), 0);
}

TEST(CudaOnHost, ADeviceThatIsNotThereIsOneErrorThatCountsThem) {
  EXPECT_EQ(&cuda_device(), &cuda_device(0));
  EXPECT_NE(&cuda_device(), &cuda_device(1));
  try {
    cuda_device(7);
    ADD_FAILURE() << "there are eight";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorCode::kDevice);
    EXPECT_STREQ(error.what(), "there is no device 'cuda:7': this machine has 2, cuda:0 to cuda:1");
  }
}

// ---- Work runs late, and with what there is then.

using cuda::check;

TEST(CudaOnHost, ACopyReadsItsMemoryWhenSomebodyWaits) {
  constexpr size_t kBytes = 64;
  cuda::DeviceMemory there(kBytes);
  const cuda::PinnedMemory from(kBytes), to(kBytes);
  std::memset(from.data(), 1, kBytes);
  std::memset(to.data(), 0, kBytes);
  cuda::Event event;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaMemcpyAsync(there.data(), from.data(), kBytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  check(cudaMemcpyAsync(to.data(), there.data(), kBytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  check(cudaEventRecord(event.get(), stream), "cudaEventRecord");
  std::memset(from.data(), 2, kBytes);
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");  // which waits for nothing
  EXPECT_EQ(to.data()[0], 0);
  check(cudaEventSynchronize(event.get()), "cudaEventSynchronize");
  EXPECT_EQ(to.data()[0], 2);
}

TEST(CudaOnHost, WhatIsUsedAfterItsEndEndsTheProgram) {
  constexpr size_t kBytes = 64;
  cuda::CudaStream stream(0);
  const auto copy = [&](void* to, const void* from) {
    check(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDefault, stream.handle()), "cudaMemcpyAsync");
  };
  cuda::DeviceMemory there(kBytes);
  EXPECT_DEATH(
      {
        {
          const cuda::PinnedMemory gone(kBytes);
          copy(there.data(), gone.data());
        }
        stream.synchronize();
      },
      "a copy runs after its memory has been freed");
  std::unique_ptr<Recording> of_memory, of_event;
  {
    const cuda::DeviceMemory gone(kBytes);
    of_memory = stream.record([&] { copy(there.data(), gone.data()); });
  }
  EXPECT_DEATH((of_memory->replay(), stream.synchronize()), "a copy runs after its memory has been freed");
  {
    const cuda::Event gone(cudaEventDefault);
    of_event = stream.record([&] {
      check(cudaEventRecordWithFlags(gone.get(), stream.handle(), cudaEventRecordExternal), "cudaEventRecordWithFlags");
    });
  }
  EXPECT_DEATH((of_event->replay(), stream.synchronize()), "an event that has been destroyed");
  cudaStream_t destroyed = nullptr;
  check(cudaStreamCreateWithFlags(&destroyed, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaStreamDestroy(destroyed), "cudaStreamDestroy");
  EXPECT_DEATH(cudaStreamSynchronize(destroyed), "a stream that has been destroyed");
}

TEST(CudaOnHost, AThreadThatCapturesAllocatesFreesAndWaitsForNothing) {
  cuda::CudaStream stream(0), other(0);
  cuda::DeviceMemory memory(64);
  cuda::Event event;
  std::vector<cudaError_t> found;
  stream.record([&] {
    void *device = nullptr, *host = nullptr;
    found = {cudaMalloc(&device, 64),
             cudaMallocHost(&host, 64),
             cudaFree(memory.data()),
             cudaFreeHost(nullptr),
             cudaEventQuery(event.get()),
             cudaEventSynchronize(event.get()),
             cudaStreamDestroy(stream.handle()),
             cudaStreamSynchronize(other.handle()),
             cudaStreamSynchronize(stream.handle())};
  });
  for (const cudaError_t status : found) EXPECT_EQ(status, cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeGlobal), cudaErrorNotSupported);
  cudaStream_t blocking = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault), cudaErrorNotSupported);
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
}  // namespace onnx_train::device_test
