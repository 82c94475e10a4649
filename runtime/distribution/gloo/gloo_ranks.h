// Collectives over Gloo, PyTorch's engine on CPUs: a connection between each two ranks, whose bytes a thread of Gloo's
// moves. The caller owns the object, as it does any Collectives. Gloo keeps what two ranks send each other apart by a
// number, which is a hash of the name and the size; so that ranks that are at different places learn it, a header goes
// before. What Gloo does not tell is why a rank is gone: each rank says it last (`leave`).
//
// Gloo trusts who connects to a rank while ranks connect, and what they send later. docs/distributed.md says what that
// means for the network.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/distribution/gloo/last_words.h"
#include "runtime/distribution/queued_collectives.h"
#include "runtime/distribution/ranks.h"

namespace onnx_train {

class GlooRanks : public QueuedCollectives {
 public:
  // `mesh` is connected. `hosts` has each rank's address.
  GlooRanks(std::shared_ptr<gloo::Context> mesh, std::vector<std::string> hosts);
  // Tells the others that this rank has ended well, unless it has failed, and waits a moment for their end.
  ~GlooRanks() override;

  int rank() const override { return mesh_->rank; }
  int size() const override { return mesh_->size; }
  std::string transport() const override { return "Gloo"; }
  void send(const std::string& name, int to, std::span<const std::byte> data) override;
  void receive(const std::string& name, int from, std::span<std::byte> data) override;
  void leave(const std::string& reason) noexcept override;

 protected:
  void transfer(const std::vector<int>& members, const std::string& what,
                const std::vector<std::span<const std::byte>>& out,
                const std::vector<std::span<std::byte>>& in) override;
  void check_ranks() override;

 private:
  using Clock = std::chrono::steady_clock;
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  struct Header {
    uint64_t place, bytes;  // `place`: a hash of the name
  };
  // What a rank sends in an exchange begins with this. Memory for it waits at the receiver, so that it goes at once;
  // longer data follow when the receiver has said that it waits for them.
  struct Parcel {
    Header header;
    std::array<std::byte, (1 << 16) - sizeof(Header)> data;
  };
  static constexpr size_t kInParcel = sizeof(Parcel::data);
  struct Inbox {
    std::unique_ptr<Parcel> parcel;
    Buffer buffer;
  };
  struct Sending {
    int to;
    Header header;
    std::vector<std::byte> copy;  // of a message, or of a parcel
    Buffer header_out, data_out;  // none where it has no data
  };
  struct Receiving {
    int from;
    Header header;              // of a message
    Buffer header_in, data_in;  // none of what comes in a parcel
  };

  // The exchange of this rank with another one, in two parts.
  void begin_parcel(Sending* sending, const std::string& what, std::span<const std::byte> data);
  void take_parcel(Receiving* receiving, const std::string& what, std::span<std::byte> data);
  void expect_parcel(int from, Inbox* inbox);
  // Data stays until it is received or sent.
  void begin(Receiving* receiving, uint64_t slot, const std::string& name, std::span<std::byte> data);
  void begin(Sending* sending, uint64_t slot, const std::string& name, std::span<const std::byte> data);
  // Begins work of Gloo's with a rank.
  template <typename F>
  void post(int rank, const F& work);
  // Repeats until is_done(). Why that will not be; "" where it is.
  template <typename F>
  std::string loss_before(int rank, const F& is_done);
  std::string loss_before_sent(const Sending& sending);
  // Throws the cause.
  void wait_received(int from, const Buffer& buffer);
  // Wait until all is sent, or cannot be.
  void flush_messages();
  void flush(const std::list<Sending>& sends, Clock::time_point deadline);
  // What a rank has said last, or that it is gone; "" where it goes on. `has_failed`: work with it has.
  std::string loss_of(int rank, bool has_failed);
  // Whether the connection has failed.
  bool is_gone(int rank);
  // Throws the first cause.
  [[noreturn]] void fail_because(const std::string& cause);
  void check_cause();

  std::shared_ptr<gloo::Context> mesh_;
  std::vector<std::string> hosts_;
  GlooWaits waits_;
  LastWords words_{mesh_, &waits_};
  std::mutex cause_mutex_, probes_mutex_;
  std::string cause_;  // why there are no more exchanges
  bool has_left_ = false;
  std::atomic<bool> leaves_ = false;
  Buffer probe_;
  std::map<int, Clock::time_point> probed_;  // by rank
  // By rank, the next one first: who has what this rank has sent may be an exchange ahead.
  std::vector<std::deque<Inbox>> inboxes_;
  std::map<int, WorkQueue> outboxes_;  // by rank; they wait for messages
};

// As a function of the module kGlooModule.
std::unique_ptr<Collectives> connect_over_gloo(const RankPlace& place, Deadline deadline,
                                               const std::function<void(const std::string&)>& on_wait);

}  // namespace onnx_train
