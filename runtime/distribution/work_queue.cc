#include "runtime/distribution/work_queue.h"

#include <algorithm>
#include <utility>

namespace onnx_train {

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WorkQueue::add(std::string name, std::function<void()> work) {
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  const std::lock_guard lock(mutex_);
  left_.push_back({std::move(name), std::move(work)});
  changed_.notify_all();
}

void WorkQueue::wait(const std::string& name) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::none_of(left_.begin(), left_.end(), [&](const Work& each) { return each.name == name; });
  });
  if (failure_) std::rethrow_exception(failure_);
}

void WorkQueue::drain() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return left_.empty(); });
}

bool WorkQueue::drain_within(std::chrono::milliseconds time) noexcept {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return left_.empty(); });
}

void WorkQueue::check() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void WorkQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !left_.empty(); });
    if (left_.empty()) return;
    if (!failure_) {
      const Work& first = left_.front();  // stays where it is when others are added
      lock.unlock();
      std::exception_ptr failure;
      try {
        first.work();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure;
    }
    left_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace onnx_train
