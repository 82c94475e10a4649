#include "tests/cuda_on_host/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#if GPU_HOST_RACES
#include <sanitizer/tsan_interface.h>
#endif

#ifdef __x86_64__
// Saves the registers that a call preserves on the stack, stores the stack pointer in *saved, and restores those at
// `loaded`. ucontext does the same with two system calls, six times as slow.
extern "C" void gpu_host_switch_stacks(void** saved, void* loaded);
asm(R"(
.text
.globl gpu_host_switch_stacks
.hidden gpu_host_switch_stacks
.type gpu_host_switch_stacks, @function
gpu_host_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gpu_host_switch_stacks, . - gpu_host_switch_stacks
)");
#endif

namespace gpu_host {
namespace {

// Sanitizers' frames are larger.
#if defined(__SANITIZE_ADDRESS__) || GPU_HOST_RACES
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr size_t kPage = 4096;
constexpr int kSavedRegisters = 6;

Fiber* entered = nullptr;  // the fiber that is about to start
Fiber* left = nullptr;     // the fiber that was running before the last switch

}  // namespace

Fiber::Fiber(void (*main)()) : main_(main), stack_bytes_(kStackBytes) {
  // The page below the stack stays closed. Fibers are never destroyed.
  void* memory =
      mmap(nullptr, kStackBytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kPage, PROT_NONE) != 0) {
    std::fputs("cuda_on_host: no memory for the stack of a thread\n", stderr);
    std::abort();
  }
  char* const stack = static_cast<char*>(memory) + kPage;
  stack_ = stack;
#if GPU_HOST_RACES
  sanitizer_fiber_ = __tsan_create_fiber(0);
#endif
#ifdef __x86_64__
  // Stack tops that are a multiple of 4096 bytes apart would share the same sets of the cache.
  static size_t fibers = 0;
  void** top = reinterpret_cast<void**>(stack + kStackBytes - fibers++ * 448 % 8192);
  *--top = nullptr;  // the ABI requires rsp % 16 == 8 at a function's start
  *--top = reinterpret_cast<void*>(&Fiber::enter);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  stack_pointer_ = top;
#else
  auto* context = new ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStackBytes;
  context->uc_link = nullptr;
  makecontext(context, &Fiber::enter, 0);
  stack_pointer_ = context;
#endif
}

void Fiber::enter() {
  Fiber* const self = entered;
  self->finish_switch();
  self->main_();
  std::abort();
}

// Tells the address sanitizer that the switch is complete; it returns the bounds of the previous fiber's stack.
void Fiber::finish_switch() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack_, &left->stack_, &left->stack_bytes_);
#endif
}

void Fiber::switch_fibers(Fiber& from, Fiber& to) {
  entered = &to;
  left = &from;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.stack_, to.stack_bytes_);
#endif
#if GPU_HOST_RACES
  if (!from.sanitizer_fiber_) from.sanitizer_fiber_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.sanitizer_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef __x86_64__
  gpu_host_switch_stacks(&from.stack_pointer_, to.stack_pointer_);
#else
  if (!from.stack_pointer_) from.stack_pointer_ = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(from.stack_pointer_), static_cast<ucontext_t*>(to.stack_pointer_));
#endif
  from.finish_switch();
}

void release([[maybe_unused]] void* where) {
#if GPU_HOST_RACES
  __tsan_release(where);
#endif
}

void acquire([[maybe_unused]] void* where) {
#if GPU_HOST_RACES
  __tsan_acquire(where);
#endif
}

}  // namespace gpu_host
