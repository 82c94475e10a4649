// What ranks over MPI have beside its collectives: communicators, the parcels that each rank sends each other one, and
// a thread that initializes MPI, keeps what was sent moving, tells another rank that this one is alive, and finalizes
// MPI. The owner is one MpiRanks; the thread shares the object, so that a call of MPI that never returns keeps neither
// the owner nor the program. All functions but `connect` and `close` are called while the caller holds `mutex`, and
// none of them waits; so MPI is called by one of our threads at a time.
//
// What MPI does not do is tell that a rank is gone. mpirun ends all processes of a run when one is killed; with
// --continuous, or under Slurm, nothing may, and no variable says so. So each rank sends the next one a heartbeat, and
// that one tells all when it has heard nothing for `silence` of its own time: a machine, or a whole run, that sleeps
// meanwhile loses none. A rank is gone, too, when a call of MPI for it fails (MPI_ERRORS_RETURN).
#pragma once

#include <mpi.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/distribution/ranks.h"

namespace onnx_train {

// Throws Error with MPI's text.
void expect_mpi(int status, const char* call);

// A committed type that is all bytes of a span at their address: the buffer of a call is MPI_BOTTOM, and its count 1,
// since MPI counts with int. `block` is the most bytes that it counts at once.
MPI_Datatype type_of(std::span<const std::byte> bytes, size_t block = size_t{1} << 30);

// What each rank sends each other one, in order: its part of an exchange, with the data if they fit; or its last words,
// which are empty where all is well.
struct Parcel {
  static constexpr size_t kRoom = (1 << 16) - 24;

  uint32_t is_last = 0;
  uint32_t place = 0;  // text_hash of the exchange's name
  uint64_t bytes = 0;  // for the receiver
  uint64_t most = 0;   // for any member of the exchange
  std::array<std::byte, kRoom> data;

  static bool fits(size_t bytes) { return bytes <= kRoom; }
  std::span<const std::byte> contents() const { return std::span(data).first(fits(bytes) ? bytes : 0); }
  // Itself, as it is sent.
  std::span<const std::byte> sent() const {
    return std::as_bytes(std::span(this, 1)).first(offsetof(Parcel, data) + contents().size());
  }
};

class MpiLink : public std::enable_shared_from_this<MpiLink> {
 public:
  static constexpr std::chrono::seconds kSilence{30};

  // Initializes MPI, unless the program has done that, and makes a communicator of all its ranks. Throws Error at the
  // deadline, where MPI serves one thread alone, and where its ranks are not those of `place`; tells `on_wait` after
  // five seconds that it waits.
  static std::shared_ptr<MpiLink> connect(const RankPlace& place, Deadline deadline,
                                          const std::function<void(const std::string&)>& on_wait,
                                          std::chrono::milliseconds silence = kSilence);
  // Ends the thread. With `finalize`, when all ranks have said that they end: lets go of the communicators, and of MPI
  // if `connect` has initialized it, and waits for that up to a minute. Otherwise MPI may still use what is here, which
  // then stays until the program ends.
  void close(bool finalize);

  std::mutex mutex;
  std::string cause;                                   // why there are no more exchanges
  std::map<std::vector<int>, MPI_Comm> communicators;  // of some ranks, by their numbers

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm world() const { return world_; }

  // Begins to send rank `to` its part of an exchange. `most` are the bytes for any member.
  MPI_Request send(size_t to, uint32_t place, std::span<const std::byte> data, uint64_t most);
  // The next parcel of a rank; null where there is none yet.
  const Parcel* parcel(size_t from);
  // Takes the parcel away, so that `parcel` gives the next one. Last words stay.
  void take(size_t from);
  // Sets the cause where rank r says one, or, with `ends`, has ended.
  void listen(size_t r, bool ends);
  // Begins to tell all others that and why this rank ends, unless that has been said.
  void say_last(const std::string& why);
  // Begins to send rank `to` a message, which the link keeps.
  static constexpr int kMessages = 2;  // tag
  void send(size_t to, std::vector<std::byte> message) { deliver(to, kMessages, std::move(message)); }
  // Whether all messages and last words have been taken from this rank.
  bool is_delivered() const { return deliveries_.empty(); }

 private:
  struct Peer {
    Parcel in, out;
    MPI_Request request = MPI_REQUEST_NULL;  // of `in`
    bool has_parcel = false;
  };
  struct Delivery {
    size_t to;
    std::vector<std::byte> contents;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  enum class State { kConnecting, kFailed, kConnected, kClosing, kClosed };

  MpiLink(const RankPlace& place, std::chrono::milliseconds silence);
  void run();  // all of it
  void initialize();
  void serve();
  void finalize();
  void exchange_heartbeats();
  void expect_parcel(size_t from);
  void deliver(size_t to, int tag, std::vector<std::byte> contents);
  bool is_done(size_t r, MPI_Request* request);
  // Sets `cause` where a call for rank r has failed.
  bool succeeds(size_t r, int status);

  const int rank_, size_;
  const size_t before_, next_;
  const int most_silent_;
  std::condition_variable changed_;
  State state_ = State::kConnecting;
  MPI_Comm world_ = MPI_COMM_NULL;
  bool initialized_here_ = false, finalizes_ = false, has_said_last_ = false;
  MPI_Request heartbeat_in_ = MPI_REQUEST_NULL, heartbeat_out_ = MPI_REQUEST_NULL;
  int silent_ = 0;  // times that this rank has looked for heartbeats since there was one
  std::vector<std::string> hosts_;
  std::vector<Peer> peers_;
  std::list<Delivery> deliveries_;
  std::shared_ptr<MpiLink> kept_;  // this one
};

}  // namespace onnx_train
