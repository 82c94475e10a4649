// How a thread waits for MPI, which wakes none: it looks again and again, and gives its core to others in between.
// Plain values; one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace onnx_train {

class Wait {
 public:
  // While bytes flow, the other side needs this one in a moment, which is shorter than a sleep.
  static constexpr std::chrono::microseconds kSoon{100}, kFlowing{20'000};

  explicit Wait(std::chrono::microseconds yields = kSoon) : until_(Clock::now() + yields) {}

  // Sleeps from 1 us to 100 us, after a time in which it lets other threads run.
  void pause() {
    if (sleep_.count() == 0 && Clock::now() < until_) return std::this_thread::yield();
    sleep_ = std::min(std::max(2 * sleep_, std::chrono::microseconds(1)), std::chrono::microseconds(100));
    std::this_thread::sleep_for(sleep_);
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point until_;
  std::chrono::microseconds sleep_{0};
};

}  // namespace onnx_train
