// Collectives whose started work is done by a thread of their own, while the caller computes.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "kernels/collectives.h"

namespace onnx_train {

class QueuedCollectives : public Collectives {
 public:
  // Nothing that was started is left: see `drain`.
  ~QueuedCollectives() override;

  void exchange(const std::string& what, const std::vector<std::span<const std::byte>>& out,
                const std::vector<std::span<std::byte>>& in) final;
  void start(const std::string& name, const std::function<void()>& work) final;
  void wait(const std::string& name) final;
  void drain() noexcept final;

 protected:
  // As `exchange`. One thread at a time calls it.
  virtual void transfer(const std::string& what, const std::vector<std::span<const std::byte>>& out,
                        const std::vector<std::span<std::byte>>& in) = 0;

 private:
  struct Started {
    std::string name;
    std::function<void()> work;
  };

  void work();

  std::thread thread_;  // from the first `start` on
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Started> started_;  // the first one is at work
  std::exception_ptr failure_;   // of the first that failed; those after it are left out
  bool ends_ = false;
};

}  // namespace onnx_train
