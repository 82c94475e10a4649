// Fibers: stacks of one host thread that are switched by hand, annotated for the sanitizers. One host thread at a time
// may use them.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_THREAD__) || defined(GPU_HOST_TSAN)
#define GPU_HOST_RACES 1  // the thread sanitizer watches the kernels, though perhaps not this machine
#else
#define GPU_HOST_RACES 0
#endif

namespace gpu_host {

class Fiber {
 public:
  // The fiber that the host thread is: it has the thread's own stack.
  Fiber() = default;
  // Calls main() on a stack of its own when it is first switched to; main never returns.
  explicit Fiber(void (*main)());
  Fiber(const Fiber&) = delete;

  // Stops `from`, the running fiber, and runs `to`. Returns when something switches back to `from`.
  static void switch_fibers(Fiber& from, Fiber& to);

 private:
  static void enter();
  void finish_switch();

  void (*main_)() = nullptr;
  void* stack_pointer_ = nullptr;  // where the registers are saved; a ucontext_t* on other processors than x86-64
  const void* stack_ = nullptr;    // its lowest address
  size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;       // of the address sanitizer
  void* sanitizer_fiber_ = nullptr;  // of the thread sanitizer
};

// The thread sanitizer sees all that happened before release(x) when acquire(x) returns.
void release(void* where);
void acquire(void* where);

}  // namespace gpu_host
