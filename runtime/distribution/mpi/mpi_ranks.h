// Collectives over MPI, for the ranks that mpirun has started: as those over TCP (runtime/distribution/ranks.h), with
// the same checks, errors and bits. MPI carries bytes alone; sums are ours, in their order. The caller owns the object,
// as it does any Collectives; there is one in a process at a time, which ends MPI if it has initialized it. MPI cannot
// be initialized twice: a process that wants to connect again initializes MPI itself.
//
// Where a rank fails, `leave` waits up to a second until the others have heard why, because mpirun ends them when this
// one has ended. What else MPI tells of a rank that is gone is in mpi_link.h. After a failure MPI is not finalized, and
// calls throw; a rank that is gone leaves some of their memory under way.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/distribution/mpi/mpi_link.h"
#include "runtime/distribution/queued_collectives.h"

namespace onnx_train {

class MpiRanks : public QueuedCollectives {
 public:
  explicit MpiRanks(std::shared_ptr<MpiLink> link);
  ~MpiRanks() override;

  int rank() const override { return link_->rank(); }
  int size() const override { return link_->size(); }
  std::string transport() const override { return "MPI"; }
  void send(const std::string& name, int to, std::span<const std::byte> data) override;
  void receive(const std::string& name, int from, std::span<std::byte> data) override;
  void leave(const std::string& reason) noexcept override;

 protected:
  void transfer(const std::vector<int>& members, const std::string& what,
                const std::vector<std::span<const std::byte>>& out,
                const std::vector<std::span<std::byte>>& in) override;
  void check_ranks() override;

 private:
  using Lock = std::unique_lock<std::mutex>;

  // What is exchanged with one rank.
  struct Exchange {
    size_t rank;
    RankHeader header;  // that this rank sends
    std::span<std::byte> in;
    MpiLink::Requests sends, receives;
    bool has_header = false;  // of the other rank

    size_t left() const { return (has_header ? 0 : 1) + sends.size() + receives.size(); }
  };
  // What a rank still says that nothing reads.
  struct Rest {
    size_t rank;
    std::vector<std::byte> ignored;
    MpiLink::Requests receives;
    bool is_well = false;  // it ends as this one does
    uint32_t heartbeats = 0;
  };
  // Of something that is waited for. Bytes `flow` when both sides are at it.
  struct Left {
    size_t requests;
    bool flow;
  };

  // Waits until f() has nothing left, or the deadline; others may use the link meanwhile.
  template <typename F>
  void poll(Lock* lock, Deadline deadline, const F& f);
  void advance(const std::string& what, Lock* lock, Exchange* exchange);
  // Sets `cause_` where rank r has said its last words, or is gone.
  void listen(size_t r, Lock* lock);
  // Keeps the next message of a rank, or sets `cause_`.
  void read_message(size_t r, Lock* lock);
  void say_last(uint32_t kind, const std::string& reason);
  // Whether there is nothing more to read.
  bool skip(Rest* rest);
  // Reads what the other ranks still say, until they have ended. Whether all have ended well before the deadline.
  bool read_to_the_end(Lock* lock, Deadline deadline);
  // Waits until all ranks have ended, and ends MPI. Once: when the object or the program ends.
  void end_link() noexcept;

  const std::shared_ptr<MpiLink> link_;
  std::vector<std::deque<RankMessage>> messages_;  // received, by rank
  std::vector<bool> has_said_last_;                // by rank
  std::string cause_;                              // why there are no more exchanges
  bool has_ended_ = false;
};

}  // namespace onnx_train
