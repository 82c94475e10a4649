// Work that a thread of its own does in order, while the caller goes on. The caller owns the queue; one thread adds.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace onnx_train {

class WorkQueue {
 public:
  // Waits until all is done, or left out.
  ~WorkQueue();

  // After the first work that fails, the rest is left out.
  void add(std::string name, std::function<void()> work);
  // Waits until the work of this name that was added last is done. Throws what has failed.
  void wait(const std::string& name);
  // Waits until nothing is left.
  void drain() noexcept;
  // The same for a time at most; whether nothing is left.
  bool drain_within(std::chrono::milliseconds time) noexcept;
  // Throws what has failed.
  void check();
  // Whether the caller is the queue's thread.
  bool is_here() const { return thread_.get_id() == std::this_thread::get_id(); }

 private:
  struct Work {
    std::string name;
    std::function<void()> work;
  };

  void run();

  std::thread thread_;  // from the first work on
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> left_;  // the first one is being done
  std::exception_ptr failure_;
  bool ends_ = false;
};

}  // namespace onnx_train
