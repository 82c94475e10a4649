// Collectives over MPI, for the ranks that mpirun has started: MPI's own, with the checks, errors and bits of any other
// transport. The caller owns the object, as it does any Collectives; there is one in a process at a time, which ends
// MPI if it has initialized it. MPI cannot be initialized twice: a process that wants to connect again initializes MPI
// itself.
//
// MPI's collectives know neither names nor errors, and one that not all ranks call never returns. So the members of an
// exchange first tell each other what they are at (Parcel), with the data where all have few. MPI's collective follows,
// and while it is waited for, last words are listened for.
//
// Where a rank fails, `leave` waits up to a second until the others have heard why, because mpirun ends them when this
// one has ended. What else MPI tells of a rank that is gone is in mpi_link.h. After a failure MPI is not finalized, and
// calls throw; a collective that cannot end has the caller's memory for two seconds.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/distribution/mpi/mpi_link.h"
#include "runtime/distribution/queued_collectives.h"

namespace onnx_train {

class MpiRanks : public QueuedCollectives {
 public:
  explicit MpiRanks(std::shared_ptr<MpiLink> link) : link_(std::move(link)) { end_with_program(); }
  ~MpiRanks() override;

  int rank() const override { return link_->rank(); }
  int size() const override { return link_->size(); }
  std::string transport() const override { return "MPI"; }
  // Of floats and doubles.
  bool sum(const std::string& what, DType type, std::span<const std::byte> z, std::span<std::byte> y) override;
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

  // Waits until f() or the deadline; others may use the link meanwhile. With `soon` the others need this rank now.
  template <typename F>
  void poll(Lock* lock, Deadline deadline, bool soon, const F& f);
  // Returns when all members are at this exchange, with the data that fit into parcels. Whether those are all.
  bool meet(const std::vector<int>& members, const std::string& what,
            const std::vector<std::span<const std::byte>>& out, const std::vector<std::span<std::byte>>& in,
            Lock* lock);
  MPI_Comm communicator_of(const std::vector<int>& members, Lock* lock);
  // Waits for what MPI does with `memory` and with the caller's.
  void finish(const std::vector<int>& members, std::vector<MPI_Request> requests, Lock* lock,
              std::shared_ptr<void> memory = nullptr);
  // Keeps the next message of a rank.
  void read_message(int from, Lock* lock);
  // Reads what the other ranks still say, until they have ended. Whether all have ended well before the deadline.
  bool read_to_the_end(Lock* lock, Deadline deadline);
  // Waits until all ranks have ended, and ends MPI. Once: when the object or the program ends.
  void end_link() noexcept;
  void end_with_program();
  void check_cause() const;

  const std::shared_ptr<MpiLink> link_;
  std::map<std::pair<int, std::string>, std::vector<std::byte>> messages_;  // received, by sender and name
  bool has_ended_ = false;
};

}  // namespace onnx_train
