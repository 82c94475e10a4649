// A radix sort, the lowest digit first (Knuth, "The Art of Computer Programming", volume 3, 5.2.5). Each pass counts
// the digits of each block's part of the keys, adds up the counts, and moves keys to their places. A warp finds its
// lanes of equal digits by a collective, so that the order is stable without atomic operations. Keys of one block need
// one launch per pass.
#include "kernels/cuda/support/sort.h"

#include <utility>

namespace onnx_train::cuda {
namespace {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kWarps = static_cast<int>(kThreads) / gpu::kWarpSize;
constexpr int kRounds = 16;  // keys per lane
constexpr int64_t kWarpKeys = int64_t{kRounds} * gpu::kWarpSize;
constexpr int64_t kBlockKeys = kWarps * kWarpKeys;
constexpr unsigned kNoDigit = kDigits;
static_assert(kDigits == kThreads);

__device__ unsigned digit_of(uint64_t key, int shift) { return static_cast<unsigned>(key >> shift) % kDigits; }

// Returns the sum of the values of lower threads, and the sum of all in *total. `scratch` holds a value per warp.
__device__ int64_t sum_before(int64_t value, int64_t* scratch, int64_t* total) {
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize,
            warp = static_cast<int>(threadIdx.x) / gpu::kWarpSize;
  long long sum = value;
  for (unsigned distance = 1; distance < gpu::kWarpSize; distance *= 2) {
    const long long before = __shfl_up_sync(gpu::kAllLanes, sum, distance);
    if (lane >= static_cast<int>(distance)) sum += before;
  }
  __syncthreads();  // the previous call may still read the scratch memory
  if (lane == gpu::kWarpSize - 1) scratch[warp] = sum;
  __syncthreads();
  int64_t before = 0;
  *total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += scratch[w];
    *total += scratch[w];
  }
  return before + sum - value;
}

// counts[digit, block] = occurrences of the digit in the block's part.
__global__ void count_digits(int64_t n, int shift, const uint64_t* keys, int64_t* counts) {
  GPU_SHARED(found, unsigned[kDigits]);
  found[threadIdx.x] = 0;
  __syncthreads();
  const int64_t first = blockIdx.x * kBlockKeys;
  for (int64_t i = first + threadIdx.x; i < first + kBlockKeys && i < n; i += kThreads) {
    atomicAdd(&found[digit_of(keys[i], shift)], 1u);
  }
  __syncthreads();
  counts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x] = found[threadIdx.x];
}

// Replaces each count of a digit by the sum of the counts before it. One block per digit.
__global__ void add_counts(int64_t blocks, int64_t* counts, int64_t* totals) {
  GPU_SHARED(scratch, int64_t[kWarps]);
  int64_t* const own = counts + blockIdx.x * blocks;
  int64_t so_far = 0;
  for (int64_t first = 0; first < blocks; first += kThreads) {
    const int64_t b = first + threadIdx.x;
    int64_t total;
    const int64_t before = sum_before(b < blocks ? own[b] : 0, scratch, &total);
    if (b < blocks) own[b] = so_far + before;
    so_far += total;
  }
  if (threadIdx.x == 0) totals[blockIdx.x] = so_far;
}

// Calls f(position, key, digit, lanes of equal digits) for the keys of a warp in order. All lanes call it together; at
// positions from n on, `digit` is kNoDigit.
template <typename F>
__device__ void for_each_key(int64_t n, int shift, const uint64_t* keys, const F& f) {
  const int64_t warp = threadIdx.x / gpu::kWarpSize, lane = threadIdx.x % gpu::kWarpSize;
  const int64_t first = blockIdx.x * kBlockKeys + warp * kWarpKeys + lane;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = first + round * gpu::kWarpSize;
    const uint64_t key = i < n ? keys[i] : 0;
    const unsigned digit = i < n ? digit_of(key, shift) : kNoDigit;
    const unsigned equal = __match_any_sync(gpu::kAllLanes, digit);
    f(i, key, digit, equal);
    __syncwarp();
  }
}

// A single block counts its own keys and gets no counts.
__global__ void move_keys(int64_t n, int shift, const uint64_t* keys, const int64_t* places, const int64_t* counts,
                          const int64_t* totals, uint64_t* sorted_keys, int64_t* sorted_places) {
  GPU_SHARED(scratch, int64_t[kWarps]);
  GPU_SHARED(first_of, int64_t[kDigits]);         // first place of the block's keys with a digit
  GPU_SHARED(before, unsigned[kWarps][kDigits]);  // keys with that digit in lower warps; later plus those moved
  const int thread = static_cast<int>(threadIdx.x), lane = thread % gpu::kWarpSize, warp = thread / gpu::kWarpSize;
  for (int w = 0; w < kWarps; ++w) before[w][thread] = 0;
  __syncthreads();
  const unsigned lanes_before = (1u << lane) - 1;
  for_each_key(n, shift, keys, [&](int64_t, uint64_t, unsigned digit, unsigned equal) {
    if (digit != kNoDigit && (equal & lanes_before) == 0) before[warp][digit] += static_cast<unsigned>(__popc(equal));
  });
  __syncthreads();
  unsigned sum = 0;
  for (int w = 0; w < kWarps; ++w) {
    const unsigned count = before[w][thread];
    before[w][thread] = sum;
    sum += count;
  }
  int64_t total;
  first_of[thread] = sum_before(counts ? totals[thread] : sum, scratch, &total);
  if (counts) first_of[thread] += counts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x];
  __syncthreads();
  for_each_key(n, shift, keys, [&](int64_t i, uint64_t key, unsigned digit, unsigned equal) {
    if (digit != kNoDigit) {
      const int64_t to = first_of[digit] + before[warp][digit] + __popc(equal & lanes_before);
      sorted_keys[to] = key;
      sorted_places[to] = places ? places[i] : i;
    }
    __syncwarp();
    if (digit != kNoDigit && (equal & lanes_before) == 0) before[warp][digit] += static_cast<unsigned>(__popc(equal));
  });
}

}  // namespace

Sort::Sort(int64_t count, int bits)
    : count_(count),
      blocks_((count + kBlockKeys - 1) / kBlockKeys),
      passes_(std::max((bits + kDigitBits - 1) / kDigitBits, 1)) {}

// The workspace holds the keys, the places twice, the counts and their sums.
size_t Sort::workspace() const { return static_cast<size_t>(3 * count_ + kDigits * (blocks_ + 1)) * sizeof(int64_t); }

Sort::Result Sort::run(const Launch& launch, uint64_t* keys, void* workspace, int64_t* places) const {
  auto* const numbers = static_cast<int64_t*>(workspace);
  Result from{keys, places}, to{reinterpret_cast<uint64_t*>(numbers), numbers + count_};
  int64_t* const spare_places = numbers + 2 * count_;
  int64_t* const counts = blocks_ > 1 ? numbers + 3 * count_ : nullptr;
  int64_t* const totals = numbers + 3 * count_ + kDigits * blocks_;
  if (count_ == 0) return {keys, spare_places};
  const auto blocks = static_cast<unsigned>(blocks_);
  for (int pass = 0; pass < passes_; ++pass) {
    const int shift = pass * kDigitBits;
    if (counts) {
      enqueue(launch, "count_digits", count_digits, blocks, kThreads, 0, count_, shift, from.keys, counts);
      enqueue(launch, "add_counts", add_counts, kDigits, kThreads, 0, blocks_, counts, totals);
    }
    enqueue(launch, "move_keys", move_keys, blocks, kThreads, 0, count_, shift, from.keys, from.places, counts, totals,
            to.keys, to.places);
    std::swap(from, to);
    if (!to.places) to.places = spare_places;
  }
  return from;
}

}  // namespace onnx_train::cuda
