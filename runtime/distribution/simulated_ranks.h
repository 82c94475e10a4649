// Ranks that are not there, to find out what a training would take on them: one computes what a rank computes, and the
// time of the network is that of a model. What the others would send is what this rank sends, so that numbers stay
// finite; they mean nothing. The caller owns the object; one thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "kernels/collectives.h"

namespace onnx_train {

// An exchange takes the latency, and the time in which the bytes leave this rank or reach it, whichever are more. What
// leaves the machine shares its link with what the other ranks of the machine send. The parameters are those of LogGP
// (Alexandrov et al. 1995): latency L, overhead o, and the gap for each byte G, of the network and of the processor.
struct Network {
  double latency = 20e-6;          // seconds
  double bandwidth = 10e9;         // of a rank within a machine, bytes a second in each direction
  int ranks_of_machine = 1 << 30;  // no other machine is needed
  double machine_bandwidth = 10e9;
  // Whether collectives are NCCL's: what leaves a machine crosses once, or as one sum, and goes on within the other;
  // and the pieces of a tensor follow each other. Else each rank sends to each other one, a piece after the other, as
  // processes on the CPU do.
  bool is_nccl = false;
  // What an exchange takes of the rank itself, which computes nothing meanwhile: seconds, and seconds for each byte
  // sent.
  double overhead = 0, overhead_of_byte = 0;

  double seconds(double bytes_within, double bytes_beyond) const;
};

// Synchronizes simulated ranks, each of which a thread computes: the stages of a pipeline. Times are simulated seconds,
// so that results do not depend on the threads. Functions block, and throw Error after `abandon`.
class Rendezvous {
 public:
  void post(int to, const std::string& message, double time);
  double take(int to, const std::string& message);
  // Blocks until `count` ranks have called it with this name. Returns the latest of their times.
  double meet(const std::string& name, int count, double time);
  // When a rank has failed.
  void abandon();

 private:
  struct Meeting {
    int came = 0, left = 0;
    double time = 0;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, std::string>, double> messages_;
  std::map<std::string, Meeting> meetings_;
  bool is_abandoned_ = false;
};

class SimulatedRanks : public Collectives {
 public:
  SimulatedRanks(int size, const Network& network) : size_(size), network_(network) {}
  // Rank `rank`, which computes nothing: it takes what `compute` says. Of the ranks, the first `simulated` meet at
  // `others`, and the rest do what these do.
  SimulatedRanks(int rank, int size, const Network& network, Rendezvous* others, int simulated)
      : rank_(rank), size_(size), network_(network), others_(others), simulated_(simulated), counts_(true) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void exchange_among(const std::vector<int>& members, const std::string& what,
                      const std::vector<std::span<const std::byte>>& out,
                      const std::vector<std::span<std::byte>>& in) override;
  void send(const std::string& name, int to, std::span<const std::byte> data) override;
  void receive(const std::string& name, int from, std::span<std::byte> data) override;
  void start(const std::string& name, const std::function<void()>& work) override;
  void wait(const std::string& name) override;
  void leave(const std::string&) noexcept override {}

  void compute(double seconds) { computed_seconds_ += seconds; }

  // Since the last `restart`, of a rank that computes `speed` times as fast as this machine does.
  double compute_seconds() const;
  double network_seconds() const { return network_seconds_; }  // modelled, of all exchanges one after the other
  double stalled_seconds() const { return stalled_seconds_; }  // of these: in which the rank waits and does not compute
  double bytes() const { return bytes_; }                      // that leave this rank
  int64_t exchanges() const { return exchanges_; }
  void restart(double speed = 1);

 private:
  using Clock = std::chrono::steady_clock;

  // The rank's time is that in which it computes and waits.
  double now() const { return compute_seconds() + stalled_seconds_; }
  void wait_until(double end);
  bool is_on_this_machine(int rank) const {
    return rank / network_.ranks_of_machine == rank_ / network_.ranks_of_machine;
  }
  // The network begins with these bytes when it has done what came before; the time at which it is done.
  double transfer(const std::string& what, double bytes_within, double bytes_beyond, double sent);

  int rank_ = 0, size_;
  Network network_;
  Rendezvous* others_ = nullptr;
  int simulated_ = 1;
  bool counts_ = false;
  double speed_ = 1;
  Clock::time_point begin_ = Clock::now();
  double computed_seconds_ = 0;
  double spent_seconds_ = 0;  // that exchanges took here, and would not take
  double network_seconds_ = 0, stalled_seconds_ = 0, bytes_ = 0;
  int64_t exchanges_ = 0;
  std::string last_;                    // exchange
  bool starts_ = false;                 // within `start`
  double free_at_ = 0;                  // the time at which the network has done what was started
  std::map<std::string, double> ends_;  // of what was started
};

}  // namespace onnx_train
