#include "runtime/distribution/queued_collectives.h"

#include <algorithm>

namespace onnx_train {

QueuedCollectives::~QueuedCollectives() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void QueuedCollectives::exchange(const std::string& what, const std::vector<std::span<const std::byte>>& out,
                                 const std::vector<std::span<std::byte>>& in) {
  if (thread_.joinable() && std::this_thread::get_id() != thread_.get_id()) {
    drain();
    if (failure_) std::rethrow_exception(failure_);
  }
  transfer(what, out, in);
}

void QueuedCollectives::start(const std::string& name, const std::function<void()>& work) {
  if (!thread_.joinable()) thread_ = std::thread([this] { this->work(); });
  const std::lock_guard lock(mutex_);
  started_.push_back({name, work});
  changed_.notify_all();
}

void QueuedCollectives::wait(const std::string& name) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::none_of(started_.begin(), started_.end(), [&](const Started& each) { return each.name == name; });
  });
  if (failure_) std::rethrow_exception(failure_);
}

void QueuedCollectives::drain() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return started_.empty(); });
}

void QueuedCollectives::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !started_.empty(); });
    if (started_.empty()) return;
    if (!failure_) {
      const Started& first = started_.front();  // stays where it is when others are added
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
    started_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace onnx_train
