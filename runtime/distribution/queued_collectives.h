// Collectives whose started work is done by a thread of their own, while the caller computes.
#pragma once

#include "kernels/collectives.h"
#include "runtime/distribution/work_queue.h"

namespace onnx_train {

class QueuedCollectives : public Collectives {
 public:
  void exchange_among(const std::vector<int>& members, const std::string& what,
                      const std::vector<std::span<const std::byte>>& out,
                      const std::vector<std::span<std::byte>>& in) final {
    wait_for_started();
    transfer(members, what, out, in);
  }
  void start(const std::string& name, const std::function<void()>& work) final { started_.add(name, work); }
  void wait(const std::string& name) final { started_.wait(name); }
  void drain() noexcept final { started_.drain(); }

 protected:
  // Keeps the order of what is started and what is called. Throws what started work has thrown.
  void wait_for_started() {
    if (started_.is_here()) return;
    started_.drain();
    started_.check();
  }
  // As `exchange_among`. One thread at a time calls it.
  virtual void transfer(const std::vector<int>& members, const std::string& what,
                        const std::vector<std::span<const std::byte>>& out,
                        const std::vector<std::span<std::byte>>& in) = 0;

 private:
  WorkQueue started_;
};

}  // namespace onnx_train
