#include "runtime/distribution/gloo/gloo_waits.h"

namespace onnx_train {

GlooWaits::~GlooWaits() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void GlooWaits::tick() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kTick, [&] { return ends_; })) {
    for (Buffer* const buffer : receivers_) buffer->abortWaitRecv();
    for (Buffer* const buffer : senders_) buffer->abortWaitSend();
  }
}

}  // namespace onnx_train
