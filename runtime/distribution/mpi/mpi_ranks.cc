#include "runtime/distribution/mpi/mpi_ranks.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "onnx_passes/ir/error.h"
#include "runtime/distribution/mpi/wait.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;

MpiRanks* open_ranks = nullptr;

}  // namespace

MpiRanks::MpiRanks(std::shared_ptr<MpiLink> link)
    : link_(std::move(link)),
      messages_(static_cast<size_t>(link_->size())),
      has_said_last_(static_cast<size_t>(link_->size())) {
  // mpirun takes a program for failed that ends without MPI_Finalize, and the ranks of a library live that long. The
  // command ends by quick_exit, other programs by exit.
  static constexpr auto end = [] {
    if (open_ranks) open_ranks->end_link();
  };
  static const bool registered = std::atexit(end) == 0 && std::at_quick_exit(end) == 0;
  if (registered) open_ranks = this;
}

MpiRanks::~MpiRanks() {
  end_link();
  if (open_ranks == this) open_ranks = nullptr;
}

template <typename F>
void MpiRanks::poll(Lock* lock, Deadline deadline, const F& f) {
  Wait wait;
  for (size_t before = 0; Clock::now() < deadline;) {
    const Left left = f();
    if (left.requests == 0) return;
    if (left.requests != before) wait = Wait(left.flow ? Wait::kFlowing : Wait::kSoon);
    before = left.requests;
    lock->unlock();
    wait.pause();
    lock->lock();
  }
}

void MpiRanks::send(const std::string& name, int to, std::span<const std::byte> data) {
  std::vector<std::byte> message = message_of(name, data);
  const Lock lock(link_->mutex);
  if (!cause_.empty()) fail(cause_);
  link_->deliver(static_cast<size_t>(to), std::move(message));
}

void MpiRanks::receive(const std::string& name, int from, std::span<std::byte> data) {
  const auto r = static_cast<size_t>(from);
  Lock lock(link_->mutex);
  for (;;) {
    if (!cause_.empty()) fail(cause_);
    const auto found =
        std::find_if(messages_[r].begin(), messages_[r].end(), [&](const RankMessage& m) { return m.name() == name; });
    if (found == messages_[r].end()) {
      read_message(r, &lock);
    } else if (found->data().size() != data.size()) {
      cause_ = of_another_size(from, found->data().size(), name, rank(), data.size());
    } else {
      std::copy(found->data().begin(), found->data().end(), data.begin());
      messages_[r].erase(found);
      return;
    }
  }
}

void MpiRanks::read_message(size_t r, Lock* lock) {
  const RankHeader* header = nullptr;
  poll(lock, Deadline::max(), [&] {
    header = link_->header(r);
    return Left{header || link_->is_gone(r) || !cause_.empty() ? 0u : 1u, false};
  });
  if (!cause_.empty()) return;
  if (!header || header->is_last()) return listen(r, lock);
  if (header->kind != RankHeader::kMessage || header->bytes == 0) {
    cause_ = at_another_place(r, rank(), "");
    return;
  }
  RankMessage message;
  message.contents.resize(header->bytes);
  link_->take_header(r);
  MpiLink::Requests requests;
  link_->receive(r, message.contents.data(), message.contents.size(), &requests);
  poll(lock, Deadline::max(), [&] {
    link_->advance(r, &requests);
    if (link_->is_gone(r)) listen(r, lock);
    return Left{cause_.empty() ? requests.size() : 0, true};
  });
  if (cause_.empty() && !message.has_name()) cause_ = without_a_name(r);
  messages_[r].push_back(std::move(message));  // also where it is incomplete: MPI may still write to it
}

void MpiRanks::transfer(const std::vector<int>& members, const std::string& what,
                        const std::vector<std::span<const std::byte>>& out,
                        const std::vector<std::span<std::byte>>& in) {
  Lock lock(link_->mutex);
  if (!cause_.empty()) fail(cause_);
  std::vector<Exchange> exchanges;
  exchanges.reserve(members.size());  // MPI reads their headers
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == rank()) {
      if (!out[i].empty()) std::memcpy(in[i].data(), out[i].data(), out[i].size());
      continue;
    }
    const auto r = static_cast<size_t>(members[i]);
    Exchange& made = exchanges.emplace_back(Exchange{r, header_of(what, out[i].size()), in[i], {}, {}});
    link_->send(r, made.header, out[i].data(), &made.sends);
  }
  poll(&lock, Deadline::max(), [&] {
    Left all{0, false};
    for (Exchange& exchange : exchanges) {
      if (exchange.left() == 0 || !cause_.empty()) continue;
      advance(what, &lock, &exchange);
      all.requests += exchange.left();
      all.flow |= exchange.has_header;
    }
    return cause_.empty() ? all : Left{0, false};
  });
  if (cause_.empty()) return;
  // The others get what they wait for, and MPI lets go of the caller's memory.
  poll(&lock, Clock::now() + std::chrono::seconds(2), [&] {
    size_t requests = 0;
    for (Exchange& exchange : exchanges) {
      if (link_->is_gone(exchange.rank)) continue;
      link_->advance(exchange.rank, &exchange.sends);
      link_->advance(exchange.rank, &exchange.receives);
      requests += exchange.sends.size() + exchange.receives.size();
    }
    return Left{requests, true};
  });
  fail(cause_);
}

void MpiRanks::advance(const std::string& what, Lock* lock, Exchange* exchange) {
  const size_t r = exchange->rank;
  link_->advance(r, &exchange->sends);
  if (!exchange->has_header) {
    const RankHeader* const header = link_->header(r);
    if (!header || header->is_last()) return listen(r, lock);
    if (header->kind != RankHeader::kExchange || header->place != exchange->header.place ||
        header->bytes != exchange->in.size()) {
      cause_ = at_another_place(r, rank(), what);
      return;
    }
    link_->take_header(r);
    exchange->has_header = true;
    link_->receive(r, exchange->in.data(), exchange->in.size(), &exchange->receives);
  }
  // Last words of a rank that has got here come after what it sends, and may arrive before it.
  link_->advance(r, &exchange->receives);
  if (exchange->left() > 0 && link_->is_gone(r)) listen(r, lock);
}

void MpiRanks::listen(size_t r, Lock* lock) {
  const RankHeader* const found = link_->header(r);
  if (found && found->is_last() && found->kind != RankHeader::kEnds) {
    const RankHeader header = *found;
    link_->take_header(r);
    has_said_last_[r] = true;
    auto reason = std::make_unique<std::string>(std::min(header.bytes, kLongestReason), '\0');
    MpiLink::Requests requests;
    link_->receive(r, reinterpret_cast<std::byte*>(reason->data()), reason->size(), &requests);
    poll(lock, Clock::now() + std::chrono::seconds(1), [&] {
      link_->advance(r, &requests);
      return Left{requests.size(), true};
    });
    if (cause_.empty())
      cause_ = heard(r, header.kind == RankHeader::kForwards, requests.empty() ? *reason : "it does not say why");
    if (!requests.empty()) reason.release();  // MPI may still write to it
  } else if ((found && found->is_last()) || link_->is_gone(r)) {
    cause_ = is_gone(r, link_->host(r));
  }
}

void MpiRanks::check_ranks() {
  Lock lock(link_->mutex);
  for (size_t r = 0; r < messages_.size() && cause_.empty(); ++r) {
    if (static_cast<int>(r) != rank()) listen(r, &lock);
  }
  if (!cause_.empty()) fail(cause_);
}

void MpiRanks::say_last(uint32_t kind, const std::string& reason) {
  for (size_t r = 0; r < messages_.size(); ++r) {
    if (static_cast<int>(r) == rank() || link_->is_gone(r)) continue;
    const RankHeader header{kind, kind == RankHeader::kEnds ? link_->heartbeats_sent(r) : 0,
                            std::min<uint64_t>(reason.size(), kLongestReason)};
    std::vector<std::byte> message(sizeof(header) + header.bytes);
    std::memcpy(message.data(), &header, sizeof(header));
    std::memcpy(message.data() + sizeof(header), reason.data(), header.bytes);
    link_->deliver(r, std::move(message));
  }
}

bool MpiRanks::skip(Rest* rest) {
  const size_t r = rest->rank;
  while (link_->advance(r, &rest->receives)) {
    if (link_->is_gone(r)) return true;
    if (has_said_last_[r]) {
      return !rest->is_well || link_->has_heartbeats(r, rest->heartbeats);
    }
    const RankHeader* const found = link_->header(r);
    if (!found) return false;
    const RankHeader header = *found;
    link_->take_header(r);
    has_said_last_[r] = header.is_last();
    rest->is_well = header.kind == RankHeader::kEnds;
    rest->heartbeats = header.place;
    rest->ignored.resize(std::max(rest->ignored.size(), header.bytes));
    link_->receive(r, rest->ignored.data(), header.bytes, &rest->receives);
  }
  return link_->is_gone(r);
}

bool MpiRanks::read_to_the_end(Lock* lock, Deadline deadline) {
  auto rests = std::make_unique<std::vector<Rest>>();
  for (size_t r = 0; r < messages_.size(); ++r) {
    if (static_cast<int>(r) != rank()) rests->push_back({.rank = r, .ignored = {}, .receives = {}});
  }
  poll(lock, deadline, [&] {
    size_t left = link_->is_delivered() ? 0 : 1;
    for (Rest& rest : *rests) left += !skip(&rest);
    return Left{left, false};
  });
  const bool is_well = std::all_of(rests->begin(), rests->end(), [&](const Rest& rest) {
    return rest.is_well && rest.receives.empty() && !link_->is_gone(rest.rank);
  });
  if (!is_well) rests.release();  // MPI may still write to it
  return is_well && link_->is_delivered();
}

void MpiRanks::leave(const std::string& reason) noexcept {
  try {
    Lock lock(link_->mutex);
    if (std::exchange(has_ended_, true)) return;
    const uint32_t kind = cause_.empty() ? RankHeader::kLeaves : RankHeader::kForwards;
    if (cause_.empty()) cause_ = reason;
    say_last(kind, cause_);
    read_to_the_end(&lock, Clock::now() + std::chrono::seconds(1));
    lock.unlock();
    link_->close(false);
  } catch (const std::exception&) {
    // There is no memory for the reason.
  }
}

void MpiRanks::end_link() noexcept {
  try {
    drain();
    Lock lock(link_->mutex);
    if (!has_ended_ && !cause_.empty()) {
      lock.unlock();
      return leave(cause_);
    }
    if (std::exchange(has_ended_, true)) return;
    link_->stop_heartbeats();
    say_last(RankHeader::kEnds, "");
    cause_ = "this rank has ended";
    const bool is_well = read_to_the_end(&lock, Deadline::max());
    lock.unlock();
    link_->close(is_well);
  } catch (const std::exception&) {
    // There is no memory for last words.
  }
}

}  // namespace onnx_train
