// Launches: their limits; cooperative ones, whose blocks wait for each other, and the division of recurrent operators
// into such blocks.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/recurrent/persistent_plan.h"
#include "kernels/cuda/support/device.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stream.h"

namespace onnx_train::cooperative_test {
namespace {

using cuda::check;
using cuda::GateRows;
using cuda::PersistentPlan;

// In each of `rounds` rounds a block adds up what all blocks wrote in the round before.
__global__ void add_up_all(int rounds, int* counter, int* values) {
  GPU_SHARED(own, int);
  if (threadIdx.x == 0) own = static_cast<int>(blockIdx.x) + 1;
  __syncthreads();
  for (int i = 0; i < rounds; ++i) {
    int* const now = values + i % 2 * static_cast<int>(gridDim.x);
    if (threadIdx.x == 0) {
      now[blockIdx.x] = own;
      gpu::add_release(counter, 1);
      while (gpu::load_acquire(counter) < static_cast<int>(gridDim.x) * (i + 1)) {
      }
    }
    __syncthreads();
    int sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += now[b];
    __syncthreads();
    if (threadIdx.x == 1) own = sum;
    __syncthreads();
  }
  if (threadIdx.x == 0) values[2 * gridDim.x + blockIdx.x] = own;
}

__global__ void wait_for_ever(int* counter) {
  while (gpu::load_acquire(counter) == 0) {
  }
}

class CudaCooperative : public testing::Test {
 protected:
  CudaCooperative() : memory_(static_cast<int*>(cuda_device().allocate(kBytes))) {
    check(cudaMemsetAsync(memory_, 0, kBytes, stream_.handle()), "cudaMemsetAsync");
  }
  ~CudaCooperative() override { cuda_device().free(memory_); }

  static constexpr size_t kBytes = 4096;
  cuda::CudaStream stream_{0};
  int* const memory_;
};

TEST_F(CudaCooperative, BlocksWaitForEachOtherAndHaveSharedMemoryOfTheirOwn) {
  constexpr int kBlocks = 7;
  int* const values = memory_ + 32;
  check(gpu::launch_cooperative(add_up_all, kBlocks, 64, 0, stream_.handle(), 3, memory_, values), "add_up_all");
  int results[kBlocks];
  stream_.copy_to_host(results, values + 2 * kBlocks, sizeof results);
  stream_.synchronize();
  for (const int result : results) EXPECT_EQ(result, 28 * 7 * 7);
}

TEST_F(CudaCooperative, MoreBlocksThanFitAtOnceAreRefused) {
  int of_each = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, reinterpret_cast<const void*>(add_up_all), 1024, 0),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  EXPECT_EQ(of_each, 2);
  const auto launch = [&](unsigned blocks, size_t shared) {
    return gpu::launch_cooperative(add_up_all, blocks, 1024, shared, stream_.handle(), 0, memory_, memory_ + 32);
  };
  EXPECT_EQ(launch(4 * 2, 0), cudaSuccess);
  EXPECT_EQ(launch(4 * 2 + 1, 0), cudaErrorCooperativeLaunchTooLarge);
  EXPECT_EQ(launch(4 + 1, size_t{200} << 10), cudaErrorCooperativeLaunchTooLarge) << "shared memory is for one";
  stream_.synchronize();
}

__global__ void do_nothing() {}

TEST_F(CudaCooperative, AGridOrABlockBeyondTheLimitsIsRefused) {
  const auto launch = [&](dim3 grid, dim3 block) { return gpu::launch(do_nothing, grid, block, 0, stream_.handle()); };
  EXPECT_EQ(launch({1, 65535, 1}, {1, 1, 64}), cudaSuccess);
  EXPECT_EQ(launch(1, 1024), cudaSuccess);
  for (const dim3 block : {dim3(1025), dim3(32, 33), dim3(1, 1, 65), dim3(0)})
    EXPECT_EQ(launch(1, block), cudaErrorInvalidConfiguration) << block.x << " " << block.y << " " << block.z;
  for (const dim3 grid : {dim3(1, 65536), dim3(1, 1, 65536), dim3(0x80000000u), dim3(1, 0)})
    EXPECT_EQ(launch(grid, 1), cudaErrorInvalidConfiguration) << grid.x << " " << grid.y << " " << grid.z;
  stream_.synchronize();
}

TEST_F(CudaCooperative, MoreThan48KiBOfSharedMemoryAreAllowedByTheirAttribute) {
  const auto launch = [&](size_t shared) {
    return gpu_host::enqueue_launch(stream_.handle(), reinterpret_cast<const void*>(do_nothing), 1, 1, shared, [] {});
  };
  constexpr size_t kDefault = 48 << 10, kMost = 227 << 10;
  EXPECT_EQ(launch(kDefault), cudaSuccess);
  EXPECT_EQ(launch(kDefault + 1), cudaErrorInvalidValue);
  EXPECT_EQ(gpu::allow_shared(do_nothing, kMost + 1), cudaErrorInvalidValue);
  EXPECT_EQ(gpu::allow_shared(do_nothing, kMost - 1), cudaSuccess);
  EXPECT_EQ(launch(kMost - 1), cudaSuccess);
  EXPECT_EQ(launch(kMost), cudaErrorInvalidValue);
  stream_.synchronize();
}

TEST_F(CudaCooperative, BlocksThatWaitForEverEndTheProgram) {
  EXPECT_DEATH(
      {
        check(gpu::launch_cooperative(wait_for_ever, 2, 32, 0, stream_.handle(), memory_), "wait_for_ever");
        stream_.synchronize();
      },
      "blocks wait for each other for ever");
}

// ---- Persistent kernels of recurrent operators

constexpr GateRows kLstm[] = {{0, 4}}, kGru[] = {{0, 2}, {2, 1}};

Extents extents(int64_t batch, int64_t directions, int64_t hidden, int64_t gates) {
  return {64, batch, directions, hidden, gates};
}

// All of R is in registers, once for each tile of samples, and each multiprocessor has a block at most.
void expect_consistent(const PersistentPlan& plan, const Extents& e, bool is_forward,
                       std::span<const GateRows> phases) {
  EXPECT_LE(plan.blocks(e), 132);
  EXPECT_GE(int64_t{plan.units} * plan.unit_blocks, e.hidden);
  EXPECT_GE(int64_t{plan.tile} * plan.tiles, e.batch);
  EXPECT_LT(int64_t{plan.tile} * (plan.tiles - 1), e.batch);
  EXPECT_LE(plan.shared_bytes(), size_t{96} << 10);
  EXPECT_LE(plan.units * plan.pass, cuda::kWalkThreads);
  int tasks = 0;
  for (size_t p = 0; p < phases.size(); ++p) {
    const int64_t depth = is_forward ? e.hidden : phases[p].gates * e.hidden;
    EXPECT_GE(int64_t{plan.parts[p]} * plan.vectors * 128, depth);
    EXPECT_EQ(plan.tasks[p] * cuda::kWarpRows, plan.parts[p] * plan.units * (is_forward ? phases[p].gates : 1));
    tasks += plan.tasks[p];
  }
  EXPECT_LE(tasks, cuda::kWalkWarps);
}

TEST(CudaPersistentPlan, DividesUnitsAndSamplesAmongTheMultiprocessors) {
  const Extents e = extents(32, 1, 256, 4);
  for (const bool is_forward : {true, false}) {
    const auto plan = cuda::plan_persistent(e, is_forward, kLstm, 132);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->name(e), "one kernel of 128 blocks, 16 units of 4 samples each");
    EXPECT_EQ(plan->vectors, 2);
  }
  for (const int64_t hidden : {1, 3, 20, 100, 128, 200, 333, 512, 700, 1024}) {
    for (const int64_t batch : {1, 5, 32, 200}) {
      for (const int64_t directions : {1, 2}) {
        for (const bool is_forward : {true, false}) {
          SCOPED_TRACE(testing::Message() << hidden << " " << batch << " " << directions << " " << is_forward);
          const Extents lstm = extents(batch, directions, hidden, 4), gru = extents(batch, directions, hidden, 3);
          const auto of_lstm = cuda::plan_persistent(lstm, is_forward, kLstm, 132);
          const auto of_gru = cuda::plan_persistent(gru, is_forward, kGru, 132);
          EXPECT_EQ(of_lstm.has_value(), hidden * directions <= 1024) << "16 MB of registers";
          if (of_lstm) expect_consistent(*of_lstm, lstm, is_forward, kLstm);
          if (of_gru) expect_consistent(*of_gru, gru, is_forward, kGru);
        }
      }
    }
  }
}

TEST(CudaPersistentPlan, ThereIsNoneWhereRDoesNotFit) {
  EXPECT_FALSE(cuda::plan_persistent(extents(32, 1, 1100, 4), true, kLstm, 132));
  EXPECT_FALSE(cuda::plan_persistent(extents(32, 1, 256, 4), true, kLstm, 4));
}

}  // namespace
}  // namespace onnx_train::cooperative_test
