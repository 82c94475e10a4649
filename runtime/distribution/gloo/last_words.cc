#include "runtime/distribution/gloo/last_words.h"

#include <gloo/transport/unbound_buffer.h>

#include "runtime/distribution/gloo/gloo_mesh.h"

namespace onnx_train {
namespace {

constexpr uint64_t kSlot = 0x0a11'1a57'0a11'1a57;  // no other work has this number

}  // namespace

LastWords::LastWords(std::shared_ptr<gloo::Context> context, GlooWaits* waits)
    : context_(std::move(context)), waits_(*waits), thread_([this] { listen(); }) {}

LastWords::~LastWords() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  thread_.join();
}

void LastWords::listen() {
  const WithoutPipeSignal without;
  std::vector<int> others;
  for (int r = 0; r < context_->size; ++r) {
    if (r != context_->rank) others.push_back(r);
  }
  auto buffer = context_->createUnboundBuffer(&in_, sizeof(in_));
  const auto ends = [&] {
    const std::lock_guard lock(mutex_);
    return ends_;
  };
  for (int failures = 0; !others.empty();) {
    int from = -1;
    try {
      buffer->recv(others, kSlot, 0, sizeof(in_));
      while (!waits_.received(buffer.get(), &from)) {
        if (ends()) return;
      }
    } catch (const std::exception&) {
      // The connection over which it was coming has failed. The others may still speak.
      if (++failures >= context_->size) return;
      buffer = context_->createUnboundBuffer(&in_, sizeof(in_));
      continue;
    }
    in_.reason.back() = '\0';
    std::erase(others, from);
    const std::lock_guard lock(mutex_);
    said_[from] = {static_cast<Kind>(in_.kind), in_.reason.data()};
    changed_.notify_all();
  }
}

const LastWords::Said* LastWords::heard(int rank, std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&] { return said_.contains(rank); });
  const auto found = said_.find(rank);
  return found == said_.end() ? nullptr : &found->second;
}

void LastWords::wait_for_all(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return static_cast<int>(said_.size()) == context_->size - 1; });
}

void LastWords::say(Kind kind, const std::string& reason) {
  out_.kind = kind;
  reason.copy(out_.reason.data(), out_.reason.size() - 1);
  const WithoutPipeSignal without;
  for (int r = 0; r < context_->size; ++r) {
    if (r == context_->rank) continue;
    auto buffer = context_->createUnboundBuffer(&out_, sizeof(out_));
    try {
      buffer->send(r, kSlot, 0, sizeof(out_));
      sends_.push_back(std::move(buffer));
    } catch (const std::exception&) {
      // It is gone, too.
    }
  }
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(500);
  for (const auto& each : sends_) {
    try {
      while (!waits_.sent(each.get()) && Clock::now() < deadline) {
      }
    } catch (const std::exception&) {
      // It has gone meanwhile.
    }
  }
}

}  // namespace onnx_train
