// What carries bytes between ranks over MPI: a communicator, and a thread that keeps what was sent moving and tells the
// other ranks that this one is alive. The owner is one MpiRanks; the thread shares the object, so that a call of MPI
// that never returns keeps neither the owner nor the program. All functions but `connect` and `close` are called while
// the caller holds `mutex`, and none of them waits; so MPI is called by one of our threads at a time.
//
// Each rank sends each other one headers, under one tag, and what they announce, under another, in pieces of at most
// kPiece bytes, since MPI counts with int. MPI keeps the order of what has one sender and one tag.
//
// What MPI does not do is tell that a rank is gone. Open MPI's mpirun ends all processes of a run when one is killed or
// exits with another status than 0. Where nothing does, a rank counts as gone when a call of MPI for it fails
// (MPI_ERRORS_RETURN), or when nothing has been heard of it for `silence` of this rank's own time: a machine, or a
// whole run, that sleeps meanwhile loses none.
#pragma once

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/distribution/rank_messages.h"
#include "runtime/distribution/ranks.h"

namespace onnx_train {

class MpiLink {
 public:
  using Requests = std::vector<MPI_Request>;
  static constexpr uint64_t kPiece = 1 << 25;
  static constexpr std::chrono::seconds kSilence{30};

  // Initializes MPI, unless the program has done that, and makes a communicator of all its ranks. Throws Error at the
  // deadline, where MPI serves one thread alone, and where its ranks are not those of `place`; tells `on_wait` after
  // five seconds that it waits.
  static std::shared_ptr<MpiLink> connect(const RankPlace& place, Deadline deadline,
                                          const std::function<void(const std::string&)>& on_wait,
                                          std::chrono::milliseconds silence = kSilence);
  // Ends the thread. With `finalize`, when all ranks call it: lets go of the communicator, and of MPI if `connect` has
  // initialized it, and waits for that up to a minute. Otherwise what is under way stays as it is until the program
  // ends.
  void close(bool finalize);
  ~MpiLink();

  std::mutex mutex;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& host(size_t r) const { return hosts_[r]; }
  bool is_gone(size_t r) const { return peers_[r].silent > most_silent_; }

  // Begins to send a header and the header.bytes that it announces. Both must stay until `advance` says that the
  // requests are done.
  void send(size_t to, const RankHeader& header, const std::byte* contents, Requests* requests);
  // The same of a header with what it announces after it, which the link keeps.
  void deliver(size_t to, std::vector<std::byte> message);
  // Whether all of that has been taken from this rank.
  bool is_delivered() const { return deliveries_.empty(); }
  // The next header of a rank; null where there is none yet.
  const RankHeader* header(size_t from);
  // Takes the header away, so that `header` gives the next one. There is none after last words.
  void take_header(size_t from);
  // Begins to receive what the header has announced that was taken last.
  void receive(size_t from, std::byte* contents, uint64_t bytes, Requests* requests);
  // Removes the requests to or from rank r that are done. Whether none is left.
  bool advance(size_t r, Requests* requests);
  // Before MPI is finalized all that was sent has to be received, signs of life among it: a rank stops to send them,
  // and tells each other one how many there were.
  void stop_heartbeats() { beats_ = false; }
  uint32_t heartbeats_sent(size_t to) const { return peers_[to].heartbeats_sent; }
  bool has_heartbeats(size_t from, uint32_t count);

 private:
  struct Peer {
    RankHeader next{};
    MPI_Request header = MPI_REQUEST_NULL;
    bool has_header = false;
    MPI_Request heartbeat_in = MPI_REQUEST_NULL, heartbeat_out = MPI_REQUEST_NULL;
    uint32_t heartbeats_sent = 0, heartbeats_received = 0;
    int silent = 0;  // times that this rank has looked for heartbeats since there was one
  };
  struct Delivery {
    size_t to;
    std::vector<std::byte> message;
    RankHeader header;
    Requests requests;
  };
  enum class State { kConnecting, kFailed, kConnected, kClosing, kClosed };

  MpiLink(const RankPlace& place, std::chrono::milliseconds silence);
  void run();
  void initialize();
  void expect_header(size_t from);
  void expect_heartbeat(size_t from);
  void receive_heartbeats(size_t from);
  void exchange_heartbeats();
  void finalize();
  bool test(size_t r, MPI_Request* request);
  bool succeeds(size_t r, int status);  // else the rank is gone

  const int rank_, size_;
  const int most_silent_;
  std::condition_variable changed_;
  State state_ = State::kConnecting;
  std::string failure_;
  MPI_Comm world_ = MPI_COMM_NULL;
  bool initialized_here_ = false, finalizes_ = false, beats_ = true;
  std::vector<std::string> hosts_;
  std::vector<Peer> peers_;
  std::list<Delivery> deliveries_;
};

}  // namespace onnx_train
