#include "runtime/distribution/connected_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <limits>
#include <string_view>
#include <vector>

#include "onnx_passes/ir/error.h"
#include "runtime/distribution/peers.h"
#include "runtime/distribution/queued_collectives.h"
#include "runtime/distribution/rank_messages.h"
#include "runtime/distribution/ranks.h"
#include "runtime/support/text_hash.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A list of two pieces of memory, the header and the contents, of which some bytes are done.
struct Progress {
  RankHeader header{};
  std::byte* contents = nullptr;
  uint64_t bytes = 0, done = 0;

  static Progress none() { return {.done = sizeof(RankHeader)}; }
  uint64_t size() const { return sizeof(RankHeader) + bytes; }
  bool ended() const { return done == size(); }
  std::pair<std::byte*, size_t> next() {
    if (done < sizeof(RankHeader)) return {reinterpret_cast<std::byte*>(&header) + done, sizeof(RankHeader) - done};
    return {contents + (done - sizeof(RankHeader)), static_cast<size_t>(size() - done)};
  }
};

constexpr size_t kFirstPiece = size_t{1} << 20;  // of a message, in bytes

class ConnectedRanks : public QueuedCollectives {
 public:
  ConnectedRanks(int rank, std::vector<Socket> peers) : rank_(rank), peers_(std::move(peers)) {
    for (const Socket& peer : peers_) {
      hosts_.push_back(peer ? peer.peer() : "");
      if (peer) fcntl(peer.fd(), F_SETFL, fcntl(peer.fd(), F_GETFL) | O_NONBLOCK);
    }
  }

  ~ConnectedRanks() override {
    for (size_t r = 0; r < outboxes_.size(); ++r) {  // no rank reads what is left
      if (outboxes_[r] && !outboxes_[r]->drain_within(milliseconds(0))) shutdown(peers_[r].fd(), SHUT_RDWR);
    }
  }

  int rank() const override { return rank_; }
  std::string transport() const override { return "TCP"; }
  int size() const override { return static_cast<int>(peers_.size()); }

  // A thread for each rank to which something is sent: one that is busy keeps none from the others.
  void send(const std::string& name, int to, std::span<const std::byte> data) override {
    if (!cause_.empty()) fail(cause_);
    std::vector<std::byte> message = message_of(name, data);
    const auto r = static_cast<size_t>(to);
    if (!outboxes_[r]) outboxes_[r] = std::make_unique<WorkQueue>();
    outboxes_[r]->add(name, [&peer = peers_[r], message = std::move(message)] {
      peer.send(message.data(), message.size(), Deadline::max());
    });
  }

  void receive(const std::string& name, int from, std::span<std::byte> data) override {
    const auto r = static_cast<size_t>(from);
    for (;;) {
      if (!cause_.empty()) fail(cause_);
      const auto found = std::find_if(messages_[r].begin(), messages_[r].end(),
                                      [&](const RankMessage& m) { return m.name() == name; });
      if (found != messages_[r].end()) {
        if (found->data().size() != data.size())
          cause_ = of_another_size(from, found->data().size(), name, rank_, data.size());
        if (!cause_.empty()) continue;
        std::copy(found->data().begin(), found->data().end(), data.begin());
        messages_[r].erase(found);
        return;
      }
      read_message(r);
    }
  }

  void transfer(const std::vector<int>& members, const std::string& what,
                const std::vector<std::span<const std::byte>>& out,
                const std::vector<std::span<std::byte>>& in) override {
    // What was sent comes before the exchange. What waits for other ranks does not keep these.
    for (const int member : members) {
      const auto& outbox = outboxes_[static_cast<size_t>(member)];
      if (outbox && cause_.empty()) outbox->drain();
    }
    if (!cause_.empty()) fail(cause_);
    std::vector<Progress> sends(peers_.size(), Progress::none()), receives(peers_.size(), Progress::none());
    for (size_t i = 0; i < members.size(); ++i) {
      const auto r = static_cast<size_t>(members[i]);
      if (members[i] == rank_) {
        if (!out[i].empty()) std::memcpy(in[i].data(), out[i].data(), out[i].size());
        continue;
      }
      sends[r] = {header_of(what, out[i].size()), const_cast<std::byte*>(out[i].data()), out[i].size()};
      receives[r] = {{}, in[i].data(), in[i].size()};
    }
    run(what, &sends, &receives);
    if (cause_.empty()) return;
    // The others get what they wait for, so that the reason comes between two messages.
    send_the_rest(&sends);
    fail(cause_);
  }

  // The others may be ahead of this rank, or have said why they end.
  void check_ranks() override {
    for (size_t r = 0; r < peers_.size() && cause_.empty(); ++r) {
      if (!peers_[r]) continue;
      RankHeader header{};
      const ssize_t got = recv(peers_[r].fd(), &header, sizeof(header), MSG_PEEK | MSG_DONTWAIT);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      const bool is_whole = got == static_cast<ssize_t>(sizeof(header));
      if (got <= 0 || (is_whole && header.kind != RankHeader::kExchange && header.kind != RankHeader::kMessage))
        lose(r, {});
    }
    if (!cause_.empty()) fail(cause_);
  }

  void leave(const std::string& reason) noexcept override {
    try {
      const std::string& text = cause_.empty() ? reason : cause_;
      const RankHeader header{cause_.empty() ? RankHeader::kLeaves : RankHeader::kForwards, 0,
                              std::min<uint64_t>(text.size(), kLongestReason)};
      for (size_t r = 0; r < peers_.size(); ++r) {
        if (!peers_[r] || broken_[r]) continue;
        if (outboxes_[r] && !outboxes_[r]->drain_within(milliseconds(2000))) {
          broken_[r] = true;  // it takes nothing, and would wait for the rest
          shutdown(peers_[r].fd(), SHUT_RDWR);
          continue;
        }
        try {
          const Deadline deadline = Clock::now() + milliseconds(500);
          peers_[r].send(&header, sizeof(header), deadline);
          peers_[r].send(text.data(), header.bytes, deadline);
          shutdown(peers_[r].fd(), SHUT_WR);
        } catch (const Error&) {
          broken_[r] = true;  // it is gone, too
        }
      }
      // A connection that is closed with something left to read is reset, and what was said last may be lost.
      const Deadline deadline = Clock::now() + milliseconds(500);
      for (size_t r = 0; r < peers_.size(); ++r) {
        if (peers_[r] && !broken_[r]) read_to_its_end(peers_[r], deadline);
      }
    } catch (const std::exception&) {
      // There is no memory for the reason.
    }
  }

 private:
  // Keeps the next message of rank r, or sets `cause_`.
  void read_message(size_t r) {
    Progress progress;
    if (!receive_all(r, &progress)) return;
    const RankHeader& header = progress.header;
    if (header.kind == RankHeader::kLeaves || header.kind == RankHeader::kForwards) return hear(r, header);
    if (header.kind != RankHeader::kMessage || header.bytes == 0) {
      cause_ = at_another_place(r, rank_, "");
      return;
    }
    RankMessage message;
    std::vector<std::byte>& contents = message.contents;
    while (contents.size() < header.bytes) {  // at most twice as much as has come
      contents.resize(std::min<uint64_t>(header.bytes, std::max<size_t>(2 * contents.size(), kFirstPiece)));
      progress.contents = contents.data();
      progress.bytes = contents.size();
      if (!receive_all(r, &progress)) return;
    }
    if (!message.has_name()) {
      cause_ = without_a_name(r);
      return;
    }
    messages_[r].push_back(std::move(message));
  }

  // Receives what is left; false where the rank is gone, which sets `cause_`.
  bool receive_all(size_t r, Progress* progress) {
    while (!progress->ended()) {
      const auto [data, bytes] = progress->next();
      const ssize_t got = recv(peers_[r].fd(), data, bytes, 0);
      if (got < 0 && errno == EAGAIN) {
        pollfd entry{peers_[r].fd(), POLLIN, 0};
        if (poll(&entry, 1, -1) < 0 && errno != EINTR) fail("poll: ", std::strerror(errno));
        continue;
      }
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        lose(r, *progress);
        return false;
      }
      progress->done += static_cast<uint64_t>(got);
    }
    return true;
  }

  // Sends and receives until all is done or a rank is gone, which sets `cause_`.
  void run(const std::string& what, std::vector<Progress>* sends, std::vector<Progress>* receives) {
    std::vector<pollfd> entries;
    std::vector<size_t> of;
    while (cause_.empty()) {
      entries.clear();
      of.clear();
      for (size_t r = 0; r < peers_.size(); ++r) {
        if (!peers_[r]) continue;
        const short events =
            static_cast<short>(((*sends)[r].ended() ? 0 : POLLOUT) | ((*receives)[r].ended() ? 0 : POLLIN));
        if (events == 0) continue;
        entries.push_back({peers_[r].fd(), events, 0});
        of.push_back(r);
      }
      if (entries.empty()) return;
      if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) fail("poll: ", std::strerror(errno));
      for (size_t i = 0; i < entries.size() && cause_.empty(); ++i) {
        const size_t r = of[i];
        if (entries[i].revents & (POLLIN | POLLHUP | POLLERR)) receive(what, r, &(*receives)[r]);
        if (cause_.empty() && entries[i].revents & POLLOUT) send(r, &(*sends)[r], (*receives)[r]);
      }
    }
  }

  void send(size_t r, Progress* progress, const Progress& receiving) {
    while (!progress->ended()) {
      const auto [data, bytes] = progress->next();
      const ssize_t sent = ::send(peers_[r].fd(), data, bytes, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      if (sent < 0) return lose(r, receiving);
      progress->done += static_cast<uint64_t>(sent);
    }
  }

  void receive(const std::string& what, size_t r, Progress* progress) {
    while (!progress->ended()) {
      const auto [data, bytes] = progress->next();
      const ssize_t got = recv(peers_[r].fd(), data, bytes, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) return lose(r, *progress);
      progress->done += static_cast<uint64_t>(got);
      if (progress->done != sizeof(RankHeader)) continue;
      const RankHeader& header = progress->header;
      if (header.kind == RankHeader::kLeaves || header.kind == RankHeader::kForwards) return hear(r, header);
      if (header.kind != RankHeader::kExchange || header.place != text_hash(what) || header.bytes != progress->bytes) {
        cause_ = at_another_place(r, rank_, what);
        return;
      }
    }
  }

  // The other side's connection has ended. What it said before may still be there: the rest of what is being received,
  // what it has sent of later exchanges, and its last words.
  void lose(size_t r, const Progress& receiving) {
    broken_[r] = true;
    const Deadline deadline = Clock::now() + milliseconds(1000);
    try {
      RankHeader header = receiving.header;
      for (uint64_t done = receiving.done;; header = {}, done = 0) {
        if (done < sizeof(RankHeader)) {
          peers_[r].receive(reinterpret_cast<std::byte*>(&header) + done, sizeof(RankHeader) - done, deadline);
          done = sizeof(RankHeader);
        }
        if (header.kind == RankHeader::kLeaves || header.kind == RankHeader::kForwards) return hear(r, header);
        if (header.kind != RankHeader::kExchange && header.kind != RankHeader::kMessage) break;
        skip(peers_[r], sizeof(RankHeader) + header.bytes - done, deadline);
      }
    } catch (const Error&) {
      // Nothing was said.
    }
    cause_ = is_gone(r, hosts_[r]);
  }

  static void read_to_its_end(const Socket& from, Deadline deadline) {
    try {
      skip(from, std::numeric_limits<uint64_t>::max(), deadline);
    } catch (const Error&) {
      // Its end, or the deadline.
    }
  }

  static void skip(const Socket& from, uint64_t bytes, Deadline deadline) {
    std::array<std::byte, 1 << 14> ignored;
    while (bytes > 0) {
      const size_t piece = std::min<uint64_t>(bytes, ignored.size());
      from.receive(ignored.data(), piece, deadline);
      bytes -= piece;
    }
  }

  void hear(size_t r, const RankHeader& header) {
    broken_[r] = true;
    std::string reason(std::min(header.bytes, kLongestReason), '\0');
    try {
      peers_[r].receive(reason.data(), reason.size(), Clock::now() + milliseconds(1000));
    } catch (const Error&) {
      reason = "it does not say why";
    }
    cause_ = heard(r, header, reason);
  }

  void send_the_rest(std::vector<Progress>* sends) noexcept {
    try {
      const Deadline deadline = Clock::now() + milliseconds(2000);
      for (size_t r = 0; r < peers_.size(); ++r) {
        if (!peers_[r] || broken_[r]) continue;
        try {
          while (!(*sends)[r].ended()) {
            const auto [data, bytes] = (*sends)[r].next();
            peers_[r].send(data, bytes, deadline);
            (*sends)[r].done += bytes;
          }
        } catch (const Error&) {
          broken_[r] = true;
        }
      }
    } catch (const std::exception&) {
      return;
    }
  }

  int rank_;
  std::vector<Socket> peers_;  // by rank; none for this one
  std::vector<std::string> hosts_;
  std::vector<bool> broken_ = std::vector<bool>(peers_.size());
  std::vector<std::unique_ptr<WorkQueue>> outboxes_ = std::vector<std::unique_ptr<WorkQueue>>(peers_.size());
  std::vector<std::deque<RankMessage>> messages_ = std::vector<std::deque<RankMessage>>(peers_.size());  // by rank
  std::string cause_;  // why there are no more exchanges
};

}  // namespace

std::unique_ptr<Collectives> connected_ranks(int rank, std::vector<Socket> peers) {
  return std::make_unique<ConnectedRanks>(rank, std::move(peers));
}

std::unique_ptr<Collectives> connect_over_tcp(const RankPlace& place, Deadline deadline,
                                              std::function<void(const std::string&)> on_wait) {
  if (place.address.empty()) {
    fail_as(ErrorCode::kUsage, place.launcher, " has started ", place.size, " processes, ", place.local_size,
            " of them on this machine: set MASTER_ADDR to the host of the first one");
  }
  return connected_ranks(place.rank, connect_peers(place, deadline, std::move(on_wait)));
}

}  // namespace onnx_train
