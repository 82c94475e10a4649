// Ranks that are threads of one process, with a network between them that takes its time if one is given.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "kernels/collectives.h"
#include "onnx_passes/ir/error.h"
#include "runtime/distribution/queued_collectives.h"
#include "runtime/distribution/simulated_ranks.h"

namespace onnx_train {

class LocalRanks {
 public:
  explicit LocalRanks(int size, std::optional<Network> network = {})
      : sent_(static_cast<size_t>(size)), network_(network) {
    for (int r = 0; r < size; ++r) ranks_.push_back(std::make_unique<Rank>(this, r));
  }

  // Runs f on every rank at the same time; throws what the first rank that failed throws.
  void run(const std::function<void(Collectives*)>& f) {
    std::vector<std::exception_ptr> errors(ranks_.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      threads.emplace_back([&, r] {
        try {
          f(ranks_[r].get());
        } catch (const std::exception& error) {
          errors[r] = std::current_exception();
          ranks_[r]->leave(error.what());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (first_to_leave_ >= 0) std::rethrow_exception(errors[static_cast<size_t>(first_to_leave_)]);
  }

 private:
  using Sent = std::vector<std::span<const std::byte>>;

  class Rank : public QueuedCollectives {
   public:
    Rank(LocalRanks* all, int rank) : all_(*all), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return static_cast<int>(all_.ranks_.size()); }
    void transfer(const std::vector<int>& members, const std::string& what, const Sent& out,
                  const std::vector<std::span<std::byte>>& in) override {
      if (members.size() < all_.ranks_.size()) return transfer_some(members, what, out, in);
      all_.sent_[static_cast<size_t>(rank_)] = {&what, &out};
      all_.meet();
      std::string fault;  // thrown when the others have read what this rank sends
      for (size_t r = 0; r < in.size(); ++r) {
        const auto& [name, from] = all_.sent_[r];
        const auto bytes = (*from)[static_cast<size_t>(rank_)];
        if (*name != what || bytes.size() != in[r].size()) {
          fault = concat("rank ", r, " is at ", *name, " with ", bytes.size(), " bytes, and rank ", rank_, " at ", what,
                         " with ", in[r].size());
        } else if (!bytes.empty())
          std::memcpy(in[r].data(), bytes.data(), bytes.size());
      }
      if (all_.network_) {
        double bytes = 0;
        for (size_t r = 0; r < out.size(); ++r)
          bytes += r == static_cast<size_t>(rank_) ? 0 : static_cast<double>(out[r].size());
        std::this_thread::sleep_for(std::chrono::duration<double>(all_.network_->seconds(bytes, 0)));
      }
      all_.meet();
      if (!fault.empty()) fail(fault);
    }
    void send(const std::string& name, int to, std::span<const std::byte> data) override {
      const std::lock_guard lock(all_.mutex_);
      all_.messages_[{rank_, to, name}].emplace_back(data.begin(), data.end());
      all_.changed_.notify_all();
    }
    void receive(const std::string& name, int from, std::span<std::byte> data) override {
      std::unique_lock lock(all_.mutex_);
      auto& messages = all_.messages_[{from, rank_, name}];
      all_.changed_.wait(lock, [&] { return !messages.empty() || all_.first_to_leave_ >= 0; });
      if (messages.empty()) fail("rank ", all_.first_to_leave_, " has ended: ", all_.reason_);
      if (messages.front().size() != data.size()) fail(name, " has ", messages.front().size(), " bytes");
      std::copy(messages.front().begin(), messages.front().end(), data.begin());
      messages.pop_front();
    }
    void leave(const std::string& reason) noexcept override {
      const std::lock_guard lock(all_.mutex_);
      if (all_.first_to_leave_ < 0) {
        all_.first_to_leave_ = rank_;
        all_.reason_ = reason;
      }
      all_.changed_.notify_all();
    }

   private:
    void transfer_some(const std::vector<int>& members, const std::string& what, const Sent& out,
                       const std::vector<std::span<std::byte>>& in) {
      for (size_t i = 0; i < members.size(); ++i) send(what, members[i], out[i]);
      for (size_t i = 0; i < members.size(); ++i) receive(what, members[i], in[i]);
    }

    LocalRanks& all_;
    int rank_;
  };

  // Waits until all ranks are here.
  void meet() {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (++arrived_ == static_cast<int>(ranks_.size())) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || first_to_leave_ >= 0; });
    if (round_ == round) fail("rank ", first_to_leave_, " has ended: ", reason_);
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::pair<const std::string*, const Sent*>> sent_;
  std::map<std::tuple<int, int, std::string>, std::deque<std::vector<std::byte>>> messages_;  // from, to, name
  std::optional<Network> network_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0, first_to_leave_ = -1;
  int64_t round_ = 0;
  std::string reason_;
};

}  // namespace onnx_train
