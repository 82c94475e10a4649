// The host makes the same demands on addresses as CUDA's libraries (docs/cuda.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/products/cublas.h"
#include "kernels/cuda/support/device.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stream.h"
#include "kernels/place.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::addresses_test {
namespace {

TEST(CudaAddresses, RangesOfAWorkspaceAreAlignedAsCublasLtWants) {
  Workspace workspace;
  for (const size_t bytes : {1, 64, 256, 257}) EXPECT_EQ(workspace.reserve(bytes).offset % 256, 0u);
  EXPECT_EQ(workspace.bytes(), size_t{256 + 256 + 256 + 512});
}

class Block {
 public:
  explicit Block(size_t bytes) : data_(static_cast<char*>(cuda_device().allocate(bytes))) {}
  ~Block() { cuda_device().free(data_); }
  Block(const Block&) = delete;
  char* at(size_t offset) const { return data_ + offset; }

 private:
  char* data_;
};

TEST(CudaAddresses, BlocksOfMemoryAreAlignedTo256BytesAndNoBetter) {
  for (const size_t bytes : {1, 256, 257, 512, 4096, 5 << 20}) {
    const Block block(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.at(0)) % 512, 256u) << bytes;
  }
  void* none = &none;
  EXPECT_EQ(cudaMalloc(&none, 0), cudaSuccess);
  EXPECT_EQ(none, nullptr);
}

TEST(CudaAddresses, AProductRefusesWhatWasNotPromised) {
  Product product;
  product.m = product.n = product.k = 4;
  product.a = product.b = product.y = row_major_matrices({}, 4, 4);
  const cuda::LibraryProduct any(product, {DType::kFloat, DType::kFloat}),
      biased(product, {DType::kFloat, DType::kFloat}, ProductVector::kBias);
  cuda::CudaStream stream(0);
  Launch launch = {};
  launch.stream = &stream;
  const Block block(8192);
  char *const a = block.at(0), *const b = block.at(512), *const y = block.at(1024), *const bias = block.at(1536),
              *const workspace = block.at(2048);
  const auto run = [&](const void* a_at, const void* b_at, void* y_at, void* workspace_at) {
    any.run(launch, a_at, b_at, y_at, nullptr, workspace_at);
  };
  EXPECT_NO_THROW(run(a, b, y, workspace));
  EXPECT_NO_THROW(run(a + 16, b + 16, y + 16, workspace + 256));
  for (const size_t offset : {16, 64, 128}) EXPECT_THROW(run(a, b, y, workspace + offset), Error) << offset;
  EXPECT_THROW(run(a + 8, b, y, workspace), Error);
  EXPECT_THROW(run(a, b + 4, y, workspace), Error);
  EXPECT_THROW(run(a, b, y + 8, workspace), Error);
  EXPECT_NO_THROW(biased.run(launch, a, b, y, bias + 16, workspace));
  EXPECT_THROW(biased.run(launch, a, b, y, bias + 4, workspace), Error);
  // What lies in no block, or beyond its end.
  alignas(256) char host[4096] = {};
  const Block small(64);  // all of an operand
  EXPECT_NO_THROW(run(small.at(0), b, y, workspace));
  EXPECT_THROW(run(small.at(16), b, y, workspace), Error);
  EXPECT_THROW(run(a, b, small.at(16), workspace), Error);
  EXPECT_THROW(run(a, host, y, workspace), Error);
  EXPECT_THROW(run(a, b, y, host), Error);
  EXPECT_THROW(run(a, b, y, small.at(0)), Error);
  EXPECT_THROW(biased.run(launch, a, b, y, small.at(64), workspace), Error);
  stream.synchronize();
}

TEST(CudaAddresses, AProductOf8BitsDemandsRowsOfBothAndScalesInDeviceMemory) {
  constexpr int64_t kM = 16, kN = 32, kK = 48;
  Product p;
  p.m = kM, p.n = kN, p.k = kK;
  p.a = row_major_matrices({}, kM, kK);
  p.b = row_major_matrices({}, kK, kN, /*transposed=*/true);
  p.y = row_major_matrices({}, kM, kN);
  const cuda::ProductTypes types = {DType::kFloat8E4M3FN, DType::kFloat, false, DType::kFloat8E5M2};
  const auto exists = [](const Product& product, cuda::ProductTypes of) {
    return !cuda::LibraryProduct::find(product, of, ProductVector::kNone, 1).empty();
  };
  EXPECT_TRUE(exists(p, types));
  cuda::ProductTypes both = types;
  both.in = DType::kFloat8E5M2;
  EXPECT_FALSE(exists(p, both));
  EXPECT_FALSE(cuda::has_8_bit_product(both.in, both.in_b, both.out));
  Product plain = p, odd = p;
  plain.b = row_major_matrices({}, kK, kN);
  EXPECT_FALSE(exists(plain, types));
  odd.n = 24;
  odd.b = row_major_matrices({}, kK, 24, true);
  odd.y = row_major_matrices({}, kM, 24);
  EXPECT_FALSE(exists(odd, types));

  const cuda::LibraryProduct product(p, types);
  cuda::CudaStream stream(0);
  Launch launch = {};
  launch.stream = &stream;
  const Block a(kM * kK), b(kN * kK), y(kM * kN * sizeof(float)), scales(8), workspace(product.workspace());
  const float on_host[] = {0.5f, 0.25f};
  stream.copy_from_host(scales.at(0), on_host, sizeof on_host);
  const std::vector<uint8_t> ones(kN * kK, 0x38), twos(kN * kK, 0x40);  // 1 in E4M3, and 2 in E5M2
  stream.copy_from_host(a.at(0), ones.data(), kM * kK);
  stream.copy_from_host(b.at(0), twos.data(), kN * kK);
  const float* const at = reinterpret_cast<const float*>(scales.at(0));
  const auto run = [&](const void* of_a, const void* of_b) {
    product.run(launch, a.at(0), b.at(0), y.at(0), nullptr, workspace.at(0), nullptr, nullptr, {of_a, of_b});
  };
  EXPECT_THROW(run(nullptr, at), Error);
  EXPECT_THROW(run(at, on_host), Error);
  run(at, at + 1);
  std::vector<float> sums(kM * kN);
  stream.copy_to_host(sums.data(), y.at(0), sums.size() * sizeof(float));
  stream.synchronize();
  for (const float sum : sums) EXPECT_EQ(sum, 0.5f * 0.25f * 2 * kK);
}

__global__ void clear(int4* to) { *to = {}; }
__global__ void clear_two(float* to) { *gpu::vector_at<float2>(to) = {}; }

TEST(CudaAddresses, AKernelRefusesAPointerThatIsNotAlignedForItsType) {
  cuda::CudaStream stream(0);
  Launch launch = {};
  launch.stream = &stream;
  const Block block(64);
  const auto run = [&](size_t offset) {
    cuda::enqueue(launch, "clear", clear, 1, 1, 0, reinterpret_cast<int4*>(block.at(offset)));
  };
  EXPECT_NO_THROW(run(16));
  EXPECT_THROW(run(8), Error);
  cuda::enqueue(launch, "clear_two", clear_two, 1, 1, 0, reinterpret_cast<float*>(block.at(8)));
  stream.synchronize();
  EXPECT_DEATH(
      {
        cuda::enqueue(launch, "clear_two", clear_two, 1, 1, 0, reinterpret_cast<float*>(block.at(4)));
        stream.synchronize();
      },
      "not aligned");
}

__global__ void copy_one(const float* from, float* to) { *to = *from; }

TEST(CudaAddresses, AKernelRefusesAddressesOfTheHost) {
  cuda::CudaStream stream(0);
  const Block block(64);
  auto* const there = reinterpret_cast<float*>(block.at(0));
  const auto launch = [&](const float* from) {
    return gpu::launch(copy_one, 1, 1, 0, stream.handle(), from, there + 1);
  };
  const float here = 0;
  const auto of_heap = std::make_unique<float>();
  EXPECT_EQ(launch(there), cudaSuccess);
  EXPECT_EQ(launch(&here), cudaErrorIllegalAddress);
  EXPECT_EQ(launch(of_heap.get()), cudaErrorIllegalAddress);
  stream.synchronize();
}

// Compilers for devices align a variable in shared memory for its type, and dynamic shared memory to 16 bytes.
__global__ void clear_shared() {
  GPU_SHARED(numbers, float[8]);
  *gpu::vector_at<float2>(&numbers[0]) = {};
}
__global__ void clear_dynamic(int first, int count) {
  GPU_DYNAMIC_SHARED(float, numbers);
  *gpu::vector_at<float4>(numbers) = {};
  for (int i = first; i < count; ++i) numbers[i] = 0;
}

TEST(CudaAddresses, SharedMemoryIsAlignedForItsTypeAndNoBetter) {
  cuda::CudaStream stream(0);
  cuda::check(gpu::launch(clear_dynamic, 1, 1, 16, stream.handle(), 0, 4), "clear_dynamic");
  stream.synchronize();
  EXPECT_DEATH(
      {
        cuda::check(gpu::launch(clear_shared, 1, 1, 0, stream.handle()), "clear_shared");
        stream.synchronize();
      },
      "not aligned");
}

#ifdef __SANITIZE_ADDRESS__
TEST(CudaAddresses, SharedMemoryEndsWhereTheLaunchSays) {
  cuda::CudaStream stream(0);
  for (const int first : {-1, 4}) {
    EXPECT_DEATH(
        {
          cuda::check(gpu::launch(clear_dynamic, 1, 1, 16, stream.handle(), first, first + 1), "clear_dynamic");
          stream.synchronize();
        },
        "AddressSanitizer");
  }
}
#endif

TEST(CudaAddresses, ACopyStaysInOneBlockOfTheRightMemory) {
  cuda::CudaStream stream(0);
  const Block block(256), other(256);
  EXPECT_NO_THROW(stream.copy({block.at(0), other.at(0), 256}));
  EXPECT_THROW(stream.copy({block.at(128), other.at(0), 129}), Error);
  EXPECT_THROW(stream.copy({block.at(64), block.at(0), 65}), Error);  // overlapping ranges
  char host[16] = {};
  EXPECT_THROW(stream.copy({block.at(0), host, sizeof host}), Error);
  EXPECT_THROW(stream.copy_to_host(host, other.at(250), sizeof host), Error);
  stream.synchronize();
}

}  // namespace
}  // namespace onnx_train::addresses_test
