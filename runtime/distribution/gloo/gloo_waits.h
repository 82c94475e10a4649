// Waiting for Gloo. Its own waits close all connections of the process when they time out; these end every 50 ms, so
// that who waits can look whether the other side is still there. The caller owns the object; any thread.
#pragma once

#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

namespace onnx_train {

class GlooWaits {
 public:
  using Buffer = gloo::transport::UnboundBuffer;
  static constexpr std::chrono::milliseconds kTick{50};

  GlooWaits() : thread_([this] { tick(); }) {}
  ~GlooWaits();

  // Waits until the buffer has received or sent what it should, a tick at most. Whether it has. Throws Gloo's exception
  // where the connection has failed. `from`: the rank from which it was received. One thread waits for a buffer at a
  // time.
  bool received(Buffer* buffer, int* from = nullptr) {
    const Waiting waiting(this, &receivers_, buffer);
    return buffer->waitRecv(from, kForever);
  }
  bool sent(Buffer* buffer) {
    const Waiting waiting(this, &senders_, buffer);
    return buffer->waitSend(nullptr, kForever);
  }

 private:
  static constexpr std::chrono::hours kForever{24 * 365};

  class Waiting {
   public:
    Waiting(GlooWaits* waits, std::set<Buffer*>* all, Buffer* buffer) : waits_(*waits), all_(*all), buffer_(buffer) {
      const std::lock_guard lock(waits_.mutex_);
      all_.insert(buffer_);
    }
    ~Waiting() {
      const std::lock_guard lock(waits_.mutex_);
      all_.erase(buffer_);
    }

   private:
    GlooWaits& waits_;
    std::set<Buffer*>& all_;
    Buffer* buffer_;
  };

  void tick();

  std::mutex mutex_;
  std::condition_variable ended_;
  bool ends_ = false;
  std::set<Buffer*> receivers_, senders_;  // that are waited for
  std::thread thread_;
};

}  // namespace onnx_train
