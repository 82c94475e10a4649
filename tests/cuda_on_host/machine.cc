// Implements gpu_on_host.h: runs a grid's blocks one after the other, each thread of a block on a fiber. The blocks of
// a cooperative launch are all alive at once and take turns: a block runs until its threads have ended or wait in spin
// loops for other blocks.
//
// A fiber runs new threads, one after the other, until one of them waits; it then belongs to that thread until the
// thread ends. A block whose threads never wait therefore needs one fiber. With the thread sanitizer each thread has a
// separate fiber, because the sanitizer considers everything on one fiber as ordered.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda_on_host/fiber.h"
#include "tests/cuda_on_host/gpu_on_host.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) static_cast<void>(bytes)
#endif

namespace gpu_host {
namespace {

constexpr int kWarp = 32;
constexpr size_t kMostSharedBytes = 227 << 10;  // per block, for compute capability 9.0
constexpr size_t kMostStaticShared = 48 << 10;
constexpr size_t kSharedAlignment = 16;   // of dynamic shared memory, as GPU_DYNAMIC_SHARED declares it
constexpr size_t kPieceAlignment = 4096;  // larger than that of any variable

// The values of a collective's lanes, kept until each participating lane has started its next collective.
struct Gathered {
  uint32_t held_by = 0;  // one bit per lane
  alignas(kMostLaneBytes) unsigned char values[kWarp * kMostLaneBytes];
};

struct Warp {
  uint32_t ended = 0, waiting = 0;  // one bit per lane: exited; at a collective
  alignas(kMostLaneBytes) unsigned char given[kWarp][kMostLaneBytes];
  std::deque<Gathered> gathered;
};

enum class State : uint8_t { kNew, kRunnable, kAtCollective, kAtBarrier, kInSpinLoop, kEnded };

struct Thread {
  State state = State::kNew;
  Index position{};        // threadIdx
  Fiber* fiber = nullptr;  // null until the thread waits
  uint32_t mask = 0;       // mask of the collective where it waits
  size_t bytes = 0;        // size of its value there
  Gathered* held = nullptr;
  const int* read_from = nullptr;  // the last read of a spin loop, and what it read
  int read = 0;
};

struct PendingCopy {
  void* to;
  const void* from;
  size_t bytes;
};

// Shared memory. Its address is aligned as the device aligns it, and no better.
struct Variable {
  const void* key;
  char* data;
  size_t alignment;
};

struct Block {
  Index position{};  // blockIdx
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<std::vector<PendingCopy>> copies;  // by thread
  std::vector<int> order;                        // order in which threads start
  std::deque<int> runnable;                      // threads that have waited and may go on
  std::vector<int> spinning;  // threads in a spin loop, which go on when the block's next turn begins
  size_t started = 0;         // number of elements of `order`
  int live = 0, waiting = 0;
  int votes = 0, counted_votes = 0;  // of the current barrier; of the last one
  std::vector<Variable> variables;
  Variable dynamic{};
  size_t shared_bytes = 0;  // bytes of shared memory
  char* piece = nullptr;    // shared memory; only with the thread sanitizer
  size_t piece_used = 0;
  char barrier_tag = 0;  // thread sanitizer's synchronization
};

// Copies without calls that sanitizers intercept: these copies are the machine's, not the kernel's.
void copy_bytes(unsigned char* to, const void* from, size_t bytes) {
  if (bytes == 4) {
    __builtin_memcpy(to, from, 4);
  } else if (bytes == 8) {
    __builtin_memcpy(to, from, 8);
  } else {
    for (size_t i = 0; i < bytes; ++i)
      static_cast<volatile unsigned char*>(to)[i] = static_cast<const unsigned char*>(from)[i];
  }
}

class Machine {
 public:
  void run_grid(dim3 grid, dim3 block, size_t dynamic_bytes, bool is_cooperative, const std::function<void()>& body);

  // These functions are called by the running thread.
  int lane() const { return current_ % kWarp; }
  int num_threads() const { return static_cast<int>(block_->threads.size()); }
  int barrier(bool predicate);
  const void* gather(uint32_t mask, const void* value, size_t bytes);
  void* variable(const void* key, size_t bytes, size_t alignment);
  void* dynamic() const { return block_->dynamic.data; }
  void fence();
  void copy_later(void* to, const void* from, size_t bytes) {
    block_->copies[index(current_)].push_back({to, from, bytes});
  }
  void finish_copies();
  void spin(const int* from, int value);

 private:
  static size_t index(int i) { return static_cast<size_t>(i); }
  static void fiber_main();

  void begin_block(size_t number);
  bool run_block();
  void take_turns(const std::vector<size_t>& numbers);
  void run_threads();
  void resume(int thread);
  void wait(State state);
  void set_current(int thread);
  bool is_complete(int w, uint32_t mask) const;
  void release_warp(int w, uint32_t mask, size_t bytes);
  void open_barrier();
  Variable allocate_shared(const void* key, size_t bytes, size_t alignment);
  size_t piece_bytes() const { return dynamic_bytes_ + kMostStaticShared + kPieceAlignment; }
  void begin_shared_memory();
  void end_shared_memory();
  void choose_order();

  std::deque<Block> blocks_{1};  // one, or those of a cooperative launch
  Block* block_ = nullptr;       // running block
  std::vector<Fiber*> idle_fibers_;
  std::vector<Fiber*> ended_fibers_;  // fibers of ended threads; only with the thread sanitizer
  Fiber scheduler_;
  Fiber* fiber_ = nullptr;  // running fiber
  const std::function<void()>* body_ = nullptr;
  int current_ = 0;
  bool is_cooperative_ = false;  // the running launch
  int64_t stops_ = 0;            // how often a thread stopped elsewhere than in a spin loop
  size_t dynamic_bytes_ = 0;     // of the launch
  std::vector<char*> pieces_;    // pieces of shared memory; only with the thread sanitizer
  std::mt19937 random_;
  char begin_tag_ = 0, end_tag_ = 0, fence_tag_ = 0;  // thread sanitizer's synchronization
};

// Never destroyed: the program uses its fibers until it ends.
Machine& machine() {
  static auto* the = new Machine;
  return *the;
}

void Machine::set_current(int thread) {
  current_ = thread;
  thread_index = block_->threads[index(thread)].position;
}

void Machine::fiber_main() {
  while (true) {
    acquire(&machine().begin_tag_);
    machine().run_threads();
    release(&machine().end_tag_);
    Fiber::switch_fibers(*machine().fiber_, machine().scheduler_);
  }
}

// Runs the current thread, then new ones, until one waits.
void Machine::run_threads() {
  while (true) {
    (*body_)();
    Thread& ended = block_->threads[index(current_)];
    if (ended.held) ended.held->held_by &= ~(1u << lane());
    ended.state = State::kEnded;
    block_->warps[index(current_ / kWarp)].ended |= 1u << lane();
    --block_->live;
    if (GPU_HOST_RACES || ended.fiber || block_->started == block_->order.size()) return;
    set_current(block_->order[block_->started++]);
  }
}

void Machine::wait(State state) {
  Thread& thread = block_->threads[index(current_)];
  thread.state = state;
  thread.fiber = fiber_;
  Fiber::switch_fibers(*fiber_, scheduler_);
}

void Machine::resume(int thread) {
  Fiber* fiber = block_->threads[index(thread)].fiber;
  if (!fiber && idle_fibers_.empty()) idle_fibers_.push_back(new Fiber(&Machine::fiber_main));
  if (!fiber) {
    fiber = idle_fibers_.back();
    idle_fibers_.pop_back();
  }
  fiber_ = fiber;
  set_current(thread);
  block_->threads[index(thread)].state = State::kRunnable;
  Fiber::switch_fibers(scheduler_, *fiber);
  if (block_->threads[index(current_)].state != State::kEnded) return;
  // For the thread sanitizer, threads of one fiber are ordered; so within a block a fiber serves one thread.
  (GPU_HOST_RACES ? ended_fibers_ : idle_fibers_).push_back(fiber);
}

// Without other blocks that are alive, a thread spins on.
void Machine::spin(const int* from, int value) {
  Thread& thread = block_->threads[index(current_)];
  const bool is_repeated = thread.read_from == from && thread.read == value;
  thread.read_from = from;
  thread.read = value;
  if (!is_cooperative_ || !is_repeated) return;
  block_->spinning.push_back(current_);
  wait(State::kInSpinLoop);
}

bool Machine::is_complete(int w, uint32_t mask) const {
  const Warp& warp = block_->warps[index(w)];
  if ((mask & warp.ended) != 0) refuse("a warp collective's mask names a lane that has exited");
  if ((mask & warp.waiting) != mask) return false;
  for (int l = 0; l < kWarp; ++l) {
    if ((mask >> l & 1) && block_->threads[index(w * kWarp + l)].mask != mask) return false;
  }
  return true;
}

void Machine::release_warp(int w, uint32_t mask, size_t bytes) {
  Warp& warp = block_->warps[index(w)];
  auto gathered =
      std::find_if(warp.gathered.begin(), warp.gathered.end(), [](const Gathered& g) { return g.held_by == 0; });
  if (gathered == warp.gathered.end()) gathered = warp.gathered.emplace(warp.gathered.end());
  release(&warp);  // publishes the allocation, which is a write
  gathered->held_by = mask;
  warp.waiting &= ~mask;
  for (int l = 0; l < kWarp; ++l) {
    if (!(mask >> l & 1)) continue;
    Thread& thread = block_->threads[index(w * kWarp + l)];
    if (thread.bytes != bytes) refuse("the lanes of a warp are at different collectives");
    copy_bytes(gathered->values + static_cast<size_t>(l) * bytes, warp.given[l], bytes);
    thread.held = &*gathered;
    thread.state = State::kRunnable;
    block_->runnable.push_back(w * kWarp + l);
  }
}

const void* Machine::gather(uint32_t mask, const void* value, size_t bytes) {
  Thread& thread = block_->threads[index(current_)];
  if (!(mask >> lane() & 1)) refuse("a thread calls a warp collective whose mask leaves it out");
  if (thread.held) thread.held->held_by &= ~(1u << lane());
  thread.held = nullptr;
  Warp& warp = block_->warps[index(current_ / kWarp)];
  copy_bytes(warp.given[lane()], value, bytes);
  thread.mask = mask;
  thread.bytes = bytes;
  warp.waiting |= 1u << lane();
  release(&warp);
  wait(State::kAtCollective);
  acquire(&warp);
  return thread.held->values;
}

int Machine::barrier(bool predicate) {
  block_->votes += predicate;
  ++block_->waiting;
  release(&block_->barrier_tag);
  wait(State::kAtBarrier);
  acquire(&block_->barrier_tag);
  return block_->counted_votes;
}

void Machine::open_barrier() {
  block_->waiting = 0;
  block_->counted_votes = std::exchange(block_->votes, 0);
  for (const int i : block_->order) {
    if (block_->threads[index(i)].state == State::kAtBarrier) block_->runnable.push_back(i);
  }
}

void Machine::fence() {
  release(&fence_tag_);
  acquire(&fence_tag_);
}

void Machine::finish_copies() {
  for (const PendingCopy& copy : block_->copies[index(current_)]) {
    if (copy.from) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      std::memset(copy.to, 0, copy.bytes);
    }
  }
  block_->copies[index(current_)].clear();
}

// ---- Shared memory. Each byte starts as 0xff: floats are NaN.

// The thread sanitizer sees an allocation as a write of its thread. The first thread to use a variable must not be the
// writer, so the memory is part of a piece that the scheduler has allocated.
Variable Machine::allocate_shared(const void* key, size_t bytes, size_t alignment) {
  block_->shared_bytes += bytes;
  if (block_->shared_bytes > std::min(kMostSharedBytes, dynamic_bytes_ + kMostStaticShared))
    refuse("too much shared memory");
#if GPU_HOST_RACES
  const size_t step = 2 * alignment, at = block_->piece_used + (step + alignment - block_->piece_used % step) % step;
  block_->piece_used = at + bytes;
  if (block_->piece_used > piece_bytes()) refuse("too many variables in shared memory");
  return {key, block_->piece + at, alignment};
#else
  void* data = nullptr;
  if (posix_memalign(&data, std::max(kSharedAlignment, 2 * alignment), alignment + bytes) != 0)
    refuse("no memory for shared memory");
  ASAN_POISON_MEMORY_REGION(data, alignment);
  char* const variable = static_cast<char*>(data) + alignment;
  std::memset(variable, 0xff, bytes);
  return {key, variable, alignment};
#endif
}

void Machine::begin_shared_memory() {
  block_->shared_bytes = 0;
#if GPU_HOST_RACES
  void* data = nullptr;
  if (posix_memalign(&data, kPieceAlignment, piece_bytes()) != 0) refuse("no memory for shared memory");
  block_->piece = pieces_.emplace_back(static_cast<char*>(data));
  std::memset(data, 0xff, piece_bytes());
  block_->piece_used = 0;
#endif
  block_->dynamic = dynamic_bytes_ > 0 ? allocate_shared(nullptr, dynamic_bytes_, kSharedAlignment) : Variable{};
}

void Machine::end_shared_memory() {
#if !GPU_HOST_RACES
  for (const Variable& variable : block_->variables) std::free(variable.data - variable.alignment);
  if (block_->dynamic.data) std::free(block_->dynamic.data - block_->dynamic.alignment);
#endif
  block_->variables.clear();
}

void* Machine::variable(const void* key, size_t bytes, size_t alignment) {
  for (const Variable& variable : block_->variables) {
    if (variable.key == key) return variable.data;
  }
  block_->variables.push_back(allocate_shared(key, bytes, alignment));
  return block_->variables.back().data;
}

// ---- Blocks

// Makes block_ the block of this number, with threads that have not started.
void Machine::begin_block(size_t number) {
  const size_t n = size_t{block_size.x} * block_size.y * block_size.z;
#if GPU_HOST_RACES
  // A few more fibers than threads: threads of the same number in neighbouring blocks then have different fibers.
  while (idle_fibers_.size() < n + 5) idle_fibers_.push_back(new Fiber(&Machine::fiber_main));
#endif
  block_->position = {static_cast<unsigned>(number % grid_size.x),
                      static_cast<unsigned>(number / grid_size.x % grid_size.y),
                      static_cast<unsigned>(number / grid_size.x / grid_size.y)};
  block_index = block_->position;
  block_->threads.resize(n);
  for (unsigned i = 0; i < n; ++i) {
    block_->threads[i] =
        Thread{.position = {i % block_size.x, i / block_size.x % block_size.y, i / (block_size.x * block_size.y)}};
  }
  block_->warps.resize((n + kWarp - 1) / kWarp);
  for (size_t w = 0; w < block_->warps.size(); ++w) {
    Warp& warp = block_->warps[w];
    // Lanes that the block lacks count as exited.
    const size_t lanes = std::min<size_t>(kWarp, n - w * kWarp);
    warp.ended = static_cast<uint32_t>(~uint64_t{0} << lanes);
    warp.waiting = 0;
    for (Gathered& gathered : warp.gathered) gathered.held_by = 0;
  }
  block_->copies.resize(n);
  for (std::vector<PendingCopy>& copies : block_->copies) copies.clear();
  choose_order();
  block_->started = 0;
  block_->live = static_cast<int>(n);
  block_->waiting = block_->votes = 0;
  begin_shared_memory();
  release(&begin_tag_);
}

// Runs block_ until its threads have ended. Returns false if the others are in spin loops.
bool Machine::run_block() {
  block_index = block_->position;
  block_->runnable.insert(block_->runnable.end(), block_->spinning.begin(), block_->spinning.end());
  block_->spinning.clear();
  while (block_->live > 0) {
    if (!block_->runnable.empty()) {
      const int next = block_->runnable.front();
      block_->runnable.pop_front();
      resume(next);
    } else if (block_->started < block_->threads.size()) {
      resume(block_->order[block_->started++]);
    } else if (block_->waiting == block_->live) {
      open_barrier();
      continue;
    } else if (!block_->spinning.empty()) {
      return false;
    } else {
      refuse("threads wait for ever: some at a barrier, others at a warp collective for lanes that do not come");
    }
    const Thread& stopped = block_->threads[index(current_)];
    stops_ += stopped.state != State::kInSpinLoop;
    if (stopped.state == State::kAtCollective && is_complete(current_ / kWarp, stopped.mask)) {
      release_warp(current_ / kWarp, stopped.mask, stopped.bytes);
    }
  }
  end_shared_memory();
  return true;
}

// Runs the blocks of a cooperative launch.
void Machine::take_turns(const std::vector<size_t>& numbers) {
  constexpr int kMostIdleRounds = 1000;  // in which no thread stops elsewhere than in a spin loop
  std::vector<Block*> alive;
  if (blocks_.size() < numbers.size()) blocks_.resize(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    alive.push_back(block_ = &blocks_[i]);
    begin_block(numbers[i]);
  }
  for (int idle = 0; !alive.empty(); ++idle) {
    const int64_t before = stops_;
    std::erase_if(alive, [&](Block* block) {
      block_ = block;
      return run_block();
    });
    if (stops_ > before) idle = 0;
    if (idle == kMostIdleRounds) refuse("blocks wait for each other for ever");
  }
}

const std::string& order_of_threads() {
  static const char* value = std::getenv("GPU_HOST_ORDER");
  static const std::string order = value ? value : "";
  return order;
}

// Warps stay together; the order of warps and of lanes within a warp changes from block to block.
void Machine::choose_order() {
  const size_t n = block_->threads.size();
  block_->order.resize(n);
  for (size_t i = 0; i < n; ++i) block_->order[i] = static_cast<int>(i);
  if (order_of_threads() == "backwards") {
    std::reverse(block_->order.begin(), block_->order.end());
  } else if (!order_of_threads().empty()) {
    for (size_t w = 0; w < n; w += kWarp) {
      std::shuffle(block_->order.begin() + static_cast<long>(w),
                   block_->order.begin() + static_cast<long>(std::min(w + kWarp, n)), random_);
    }
  }
}

void Machine::run_grid(dim3 grid, dim3 block, size_t dynamic_bytes, bool is_cooperative,
                       const std::function<void()>& body) {
  grid_size = grid;
  block_size = block;
  block_index = thread_index = {};
  body_ = &body;
  is_cooperative_ = is_cooperative;
  dynamic_bytes_ = dynamic_bytes;
  random_.seed(static_cast<unsigned>(std::atoi(order_of_threads().c_str())));
  std::vector<size_t> numbers(size_t{grid.x} * grid.y * grid.z);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  if (order_of_threads() == "backwards") {
    std::reverse(numbers.begin(), numbers.end());
  } else if (!order_of_threads().empty()) {
    std::shuffle(numbers.begin(), numbers.end(), random_);
  }
  if (is_cooperative) {
    take_turns(numbers);
  } else {
    block_ = &blocks_.front();
    for (const size_t number : numbers) {
      begin_block(number);
      run_block();
    }
  }
  // Fibers of the thread sanitizer, which serve one thread of a block each.
  idle_fibers_.insert(idle_fibers_.begin(), ended_fibers_.rbegin(), ended_fibers_.rend());
  ended_fibers_.clear();
  acquire(&end_tag_);
  for (char* piece : pieces_) std::free(piece);
  pieces_.clear();
}

}  // namespace

Index thread_index, block_index;
dim3 block_size, grid_size;

void run_grid(dim3 grid, dim3 block, size_t dynamic_shared_bytes, const std::function<void()>& thread) {
  machine().run_grid(grid, block, dynamic_shared_bytes, false, thread);
}
void run_cooperative_grid(dim3 grid, dim3 block, size_t dynamic_shared_bytes, const std::function<void()>& thread) {
  machine().run_grid(grid, block, dynamic_shared_bytes, true, thread);
}

void refuse(const char* what) {
  std::fprintf(stderr, "cuda_on_host: block (%u, %u, %u), thread (%u, %u, %u): %s\n", block_index.x, block_index.y,
               block_index.z, thread_index.x, thread_index.y, thread_index.z, what);
  std::abort();
}

int lane() { return machine().lane(); }
int threads_in_block() { return machine().num_threads(); }
void block_barrier() { machine().barrier(false); }
int block_barrier_count(bool predicate) { return machine().barrier(predicate); }
void fence() { machine().fence(); }
void* shared_variable(const void* key, size_t bytes, size_t alignment) {
  return machine().variable(key, bytes, alignment);
}
void* dynamic_shared() { return machine().dynamic(); }
void async_copy(void* to, const void* from, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(to) % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0) {
    refuse("cp.async at an address that is not aligned");
  }
  machine().copy_later(to, from, bytes);
}
void async_wait() { machine().finish_copies(); }
void spin(const int* from, int value) { machine().spin(from, value); }
const void* gather_lanes(uint32_t mask, const void* value, size_t bytes) {
  return machine().gather(mask, value, bytes);
}

}  // namespace gpu_host
