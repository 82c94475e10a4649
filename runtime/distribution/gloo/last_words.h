// What ranks tell each other when they end, over Gloo: the one thing that Gloo does not know. The caller owns the
// object; any thread.
#pragma once

#include <gloo/context.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/distribution/gloo/gloo_waits.h"

namespace onnx_train {

class LastWords {
 public:
  enum Kind : uint32_t { kEnds = 1, kLeaves, kForwards };  // it has done its part; it fails; another one does
  struct Said {
    Kind kind;
    std::string reason;
  };
  using Clock = std::chrono::steady_clock;

  // Begins to listen to all other ranks of the context, which is connected.
  LastWords(std::shared_ptr<gloo::Context> context, GlooWaits* waits);
  ~LastWords();

  // Tells all others. Once.
  void say(Kind kind, const std::string& reason);
  // What a rank has said; null where it has not. Waits for it for `time` at most.
  const Said* heard(int rank, std::chrono::milliseconds time);
  // Waits until all others have said their last.
  void wait_for_all(Clock::time_point deadline);

 private:
  struct Message {
    uint32_t kind;
    std::array<char, 4092> reason;  // ends with 0
  };

  void listen();

  std::shared_ptr<gloo::Context> context_;
  GlooWaits& waits_;
  Message in_{}, out_{};
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> sends_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Said> said_;  // by rank
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace onnx_train
