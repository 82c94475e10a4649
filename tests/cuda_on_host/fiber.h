// Fibers: stacks of one host thread that are switched explicitly, annotated for the sanitizers. One host thread at a
// time may use them.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_THREAD__) || defined(GPU_HOST_TSAN)
#define GPU_HOST_RACES 1  // the thread sanitizer watches kernels, even if it does not watch this machine
#else
#define GPU_HOST_RACES 0
#endif

namespace gpu_host {

class Fiber {
 public:
  // The fiber of the host thread, with the thread's own stack.
  Fiber() = default;
  // Calls main() on a new stack when it is first switched to; main never returns.
  explicit Fiber(void (*main)());
  Fiber(const Fiber&) = delete;

  // Stops `from`, the running fiber, and runs `to`. Returns when something switches back to `from`.
  static void switch_fibers(Fiber& from, Fiber& to);

 private:
  static void enter();
  void finish_switch();

  void (*main_)() = nullptr;
  void* stack_pointer_ = nullptr;  // saved registers; a ucontext_t* on processors other than x86-64
  const void* stack_ = nullptr;    // its lowest address
  size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;       // state of the address sanitizer
  void* sanitizer_fiber_ = nullptr;  // state of the thread sanitizer
};

// For the thread sanitizer, everything before release(x) happens before acquire(x) returns.
void release(void* where);
void acquire(void* where);

}  // namespace gpu_host
