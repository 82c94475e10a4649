// What a step asks of the system: nothing. No allocation, no primitive, no page that it has not met, no wait for a
// lock.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/cpu/support/onednn.h"
#include "kernels/host.h"
#include "runtime/session/session.h"
#include "tests/support/allocations.h"
#include "tests/support/locks.h"
#include "tests/support/transformer.h"

namespace onnx_train::step_memory_test {
namespace {

constexpr TransformerSizes kSizes = {.blocks = 2, .width = 128, .heads = 4, .tokens = 64, .vocabulary = 512};
constexpr int64_t kBatch = 8;
constexpr int kSteps = 10;

TensorMap make_batch() {
  Tensor tokens(DType::kInt64, {kBatch, kSizes.tokens}), labels(DType::kInt64, {kBatch, kSizes.tokens});
  for (int64_t i = 0; i < tokens.size(); ++i) {
    tokens.data<int64_t>()[i] = 7 * i % kSizes.vocabulary;
    labels.data<int64_t>()[i] = 11 * i % kSizes.vocabulary;
  }
  return {{"tokens", tokens}, {"labels", labels}};
}

int64_t page_faults() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(StepMemory, AStepAllocatesAndCreatesNothing) {
  Session session(make_training_transformer(kSizes));
  const TensorMap batch = make_batch();
  session.run("step", batch);
  const size_t allocations = count_allocations(), primitives = count_primitives();
  const size_t onednn_allocations = count_onednn_allocations(), onednn_live = live_onednn_allocations();
  largest_onednn_allocation();
  ASSERT_GT(allocations, 0u);
  ASSERT_EQ(primitives > 0, cpu::has_onednn());
  for (int i = 0; i < kSteps; ++i) session.run("step", batch);
  EXPECT_EQ(count_allocations(), allocations);
  EXPECT_EQ(count_primitives(), primitives);
  constexpr size_t kLargestOfThreadsCache = 1032;  // glibc's
  EXPECT_LE(largest_onednn_allocation(), kLargestOfThreadsCache);
  EXPECT_EQ(live_onednn_allocations(), onednn_live);
  std::printf(
      "in a step of %zu nodes oneDNN itself makes %zu allocations\n",
      session.plan("step", {{"tokens", {kBatch, kSizes.tokens}}, {"labels", {kBatch, kSizes.tokens}}}).steps().size(),
      (count_onednn_allocations() - onednn_allocations) / kSteps);
}

// Times that this thread has given up its processor to wait for something.
int64_t waits() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

TEST(StepMemory, ContendedLocksAreCounted) {
  const size_t before = count_contended_locks();
  std::mutex mutex;
  mutex.lock();
  std::thread other([&] { std::lock_guard lock(mutex); });
  while (count_contended_locks() == before) std::this_thread::yield();
  mutex.unlock();
  other.join();
  EXPECT_EQ(count_contended_locks(), before + 1);
}

TEST(StepMemory, AStepTakesNoLock) {
  if (!cpu::has_onednn()) GTEST_SKIP() << "OpenBLAS takes a lock for the memory of each product";
  const int threads = num_threads();
  for (int n : {1, 2}) {
    set_num_threads(n);
    const size_t before = count_onednn_locks();
    Session session(make_training_transformer(kSizes));
    const TensorMap batch = make_batch();
    for (int i = 0; i < 3; ++i) session.run("step", batch);
    const size_t locks = count_locks(), contended = count_contended_locks(), onednn_locks = count_onednn_locks();
    ASSERT_GT(onednn_locks, before);  // planning asks oneDNN's cache
    int64_t least_waits = INT64_MAX;
    for (int i = 0; i < kSteps; ++i) {
      const int64_t waited = waits();
      session.run("step", batch);
      least_waits = std::min(least_waits, waits() - waited);
    }
    EXPECT_EQ(count_locks(), locks) << n << " threads";
    EXPECT_EQ(count_contended_locks(), contended) << n << " threads";
    std::printf("in a step with %d threads oneDNN itself takes %zu locks\n", n,
                (count_onednn_locks() - onednn_locks) / kSteps);
    if (n == 1) {
      EXPECT_EQ(least_waits, 0);  // with more, OpenMP's barriers wait; some steps may wait for a page of the program
    }
  }
  set_num_threads(threads);
}

TEST(StepMemory, AStepHasNoPageFaults) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer gives freed memory back only after a while: small allocations touch new pages";
#endif
  Session session(make_training_transformer(kSizes));
  const TensorMap batch = make_batch();
  for (int i = 0; i < 3; ++i) session.run("step", batch);
  const int64_t before = page_faults();
  for (int i = 0; i < kSteps; ++i) session.run("step", batch);
  EXPECT_LE(page_faults() - before, 2 * kSteps) << "arena of " << session.arena_bytes() << " bytes";
}

struct Mapping {
  std::string flags;
  int64_t huge_bytes = 0;
};

// What the system says of the mapping that `address` lies in.
Mapping find_mapping(const void* address) {
  Mapping mapping;
  std::ifstream file("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    uintptr_t begin = 0, end = 0;
    int64_t kib = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &begin, &end) == 2) inside = begin <= wanted && wanted < end;
    if (inside && std::sscanf(line.c_str(), "AnonHugePages: %ld kB", &kib) == 1) mapping.huge_bytes = 1024 * kib;
    if (inside && line.starts_with("VmFlags:")) mapping.flags = line + " ";
  }
  return mapping;
}

// Whether the system notes that a mapping asks for huge pages, which an emulator of a processor may not.
bool notes_advice(size_t bytes) {
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(block, bytes, MADV_HUGEPAGE);
  const Mapping mapping = find_mapping(static_cast<char*>(block) + bytes / 2);
  munmap(block, bytes);
  return mapping.flags.find(" hg ") != std::string::npos;
}

TEST(StepMemory, LargeBlocksAskForHugePages) {
  constexpr size_t kBytes = size_t{64} << 20;
  if (!notes_advice(kBytes)) GTEST_SKIP() << "this system does not note that a mapping asks for huge pages";
  char* block = static_cast<char*>(Device::cpu().allocate(kBytes));
  const Mapping mapping = find_mapping(block + kBytes / 2);
  Device::cpu().free(block);
  EXPECT_NE(mapping.flags.find(" hg "), std::string::npos) << mapping.flags;
  std::printf("%.0f of 64 MiB lie on huge pages\n", static_cast<double>(mapping.huge_bytes) / 0x1p20);
}

}  // namespace
}  // namespace onnx_train::step_memory_test
