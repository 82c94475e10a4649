// Host memory that kernels use in place, by the rules of the runtime on the host (runtime.h).
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cuda/support/device.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stream.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"
#include "tests/cuda_on_host/failing_call.h"
#include "tests/cuda_on_host/runtime.h"
#include "tests/support/device_network.h"
#include "tests/support/sessions.h"

namespace onnx_train::offload_test {
namespace {

using testing::HasSubstr;

__global__ void add_one(float* to) { to[threadIdx.x] += 1; }

SessionOptions offloading() {
  SessionOptions options = on(&cuda_device());
  options.offload = Offload::kOptimizer;
  return options;
}

TEST(CudaOffload, AKernelReadsAndWritesTheHostsMemoryAtAnAddressOfTheDevice) {
  constexpr unsigned kSize = 32;
  float* host = nullptr;
  float* data = nullptr;
  ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&host), kSize * sizeof(float), cudaHostAllocMapped), cudaSuccess);
  ASSERT_EQ(cudaHostGetDevicePointer(reinterpret_cast<void**>(&data), host, 0), cudaSuccess);
  for (unsigned i = 0; i < kSize; ++i) host[i] = static_cast<float>(i);
  cuda::CudaStream stream(0);
  Launch launch = {};
  launch.stream = &stream;
  cuda::enqueue(launch, "add_one", add_one, 1, kSize, 0, data);
  // What is enqueued may use it.
  EXPECT_DEATH(host[0] = 5, "");
  stream.synchronize();
  for (unsigned i = 0; i < kSize; ++i) EXPECT_EQ(host[i], static_cast<float>(i + 1));
  EXPECT_DEATH(data[0] = 5, "");
  EXPECT_EQ(cudaFree(data), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(host), cudaSuccess);
  EXPECT_DEATH(data[0] = 5, "");
}

TEST(CudaOffload, ACopyFindsOutWhereItsEndsAre) {
  Device& device = cuda_device();
  constexpr size_t kBytes = 3000;
  std::vector<char> values(kBytes), result(kBytes);
  for (size_t i = 0; i < kBytes; ++i) values[i] = static_cast<char>(i * 7);
  void *const there = device.allocate_host(kBytes), *const here = device.allocate(kBytes);
  {
    cuda::CudaStream stream(0);
    stream.copy_to_host(result.data(), there, kBytes);
    stream.synchronize();
    EXPECT_EQ(result, std::vector<char>(kBytes));  // zeroed
    stream.copy_from_host(there, values.data(), kBytes);
    stream.copy({here, there, kBytes});
    stream.copy({there, here, kBytes});
    stream.copy_to_host(result.data(), there, kBytes);
    stream.synchronize();
    EXPECT_EQ(result, values);
    EXPECT_THROW(stream.copy({static_cast<char*>(there) + 1, here, kBytes}), Error);
    EXPECT_THROW(stream.copy({here, values.data(), kBytes}), Error);
  }
  device.free(here);
  device.free_host(there);
  EXPECT_GT(device.measure_host_bandwidth(), 0);
}

TEST(CudaOffload, MemoryThatCannotBePinnedIsOneLine) {
  const size_t objects = gpu_host::live_objects();
  gpu_host::set_mapped_bytes(1000);
  try {
    Session session(network(), offloading());
    ADD_FAILURE() << "1,000 bytes suffice";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorCode::kMemory);
    const std::string message = error.what();
    EXPECT_THAT(message, HasSubstr("bytes of the host's memory could not be pinned for cuda"));
    EXPECT_THAT(message, HasSubstr("leave out offload"));
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  gpu_host::set_mapped_bytes(SIZE_MAX);
  EXPECT_EQ(gpu_host::live_objects(), objects);
}

// The states do not fit on the device, and training does.
TEST(CudaOffload, TrainsWhatDoesNotFitWithoutIt) {
  const Model model = network();
  size_t bytes = 0;
  double expected = 0;
  {
    Session session(clone(model), offloading());
    expected = session.run("step", batch()).at("loss").at(0);
    bytes = session.state().bytes() + session.arena_bytes() + (64 << 10);
  }
  gpu_host::set_memory_bytes(bytes);
  EXPECT_THROW(Session(clone(model), on(&cuda_device())).run("step", batch()), Error);
  Session session(clone(model), offloading());
  EXPECT_EQ(session.run("step", batch()).at("loss").at(0), expected);
  gpu_host::set_memory_bytes(size_t{4} << 30);
}

TEST(CudaOffload, EachCallThatFailsInTheMakingIsOneErrorAndLeavesNothing) {
  const Model model = network();
  const size_t objects = gpu_host::live_objects();
  int refused = 0;
  for (int64_t n = 0;; ++n) {
    const auto [reached, error] = run_with_failing_call(n, [&] { Session session(clone(model), offloading()); });
    if (error) {
      EXPECT_EQ(error->kind(), ErrorCode::kDevice) << error->what();
    }
    EXPECT_EQ(gpu_host::live_objects(), objects) << "call " << n;
    if (!reached || HasFailure()) break;
    refused += error.has_value();
  }
  EXPECT_GT(refused, 10);
}

TEST(CudaOffload, AStepWhoseCallFailsChangesNothing) {
  const Model model = network();
  Session expected(clone(model), offloading());
  expected.run("step", batch());
  const auto before = states_of(expected);
  expected.run("step", batch(2));
  const auto after = states_of(expected);
  int refused = 0;
  for (int64_t n = 0;; ++n) {
    Session session(clone(model), offloading());
    session.run("step", batch());
    const auto [reached, error] = run_with_failing_call(n, [&] { session.run("step", batch(2)); });
    if (!reached) break;
    refused += error.has_value();
    // The step has run if only the wait for its results failed.
    const auto now = states_of(session);
    if (now.at("state/step").at(0) == before.at("state/step").at(0)) {
      expect_equal(now, before);
      session.run("step", batch(2));
    }
    expect_equal(states_of(session), after);
    if (HasFailure()) {
      ADD_FAILURE() << "call " << n;
      return;
    }
  }
  EXPECT_GT(refused, 3);
}

}  // namespace
}  // namespace onnx_train::offload_test
