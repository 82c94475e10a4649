#include "runtime/distribution/gloo/gloo_ranks.h"

#include <gloo/transport/unbound_buffer.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "onnx_passes/ir/error.h"
#include "runtime/distribution/gloo/gloo_mesh.h"
#include "runtime/distribution/rank_messages.h"

namespace onnx_train {
namespace {

using std::chrono::milliseconds;

uint64_t hash_of(const std::string& text) { return XXH3_64bits(text.data(), text.size()); }

constexpr int kInboxes = 2;  // of each other rank

// The numbers by which Gloo keeps apart what two ranks send each other. Headers of exchanges keep their order.
const uint64_t kExchangeSlot = hash_of("exchange"), kProbeSlot = hash_of("probe");
uint64_t slot_of_message(const std::string& name) { return hash_of("message " + name); }
// Of what follows a header. One of another size has no receiver.
uint64_t slot_of_data(uint64_t slot, const std::string& name, uint64_t bytes) {
  return hash_of(concat(slot, " ", bytes, " ", name));
}

}  // namespace

GlooRanks::GlooRanks(std::shared_ptr<gloo::Context> mesh, std::vector<std::string> hosts)
    : mesh_(std::move(mesh)),
      hosts_(std::move(hosts)),
      probe_(mesh_->createUnboundBuffer(nullptr, 0)),
      inboxes_(hosts_.size()) {
  for (int r = 0; r < size(); ++r) {
    for (int i = 0; i < kInboxes && r != rank(); ++i) {
      auto parcel = std::make_unique<Parcel>();
      Buffer buffer = mesh_->createUnboundBuffer(parcel.get(), sizeof(Parcel));
      expect_parcel(r, &inboxes_[static_cast<size_t>(r)].emplace_back(Inbox{std::move(parcel), std::move(buffer)}));
    }
  }
}

GlooRanks::~GlooRanks() {
  {
    const std::lock_guard lock(cause_mutex_);
    leaves_ = leaves_ || !cause_.empty();
  }
  drain();
  if (leaves_) return;
  flush_messages();
  words_.say(LastWords::kEnds, "");
  words_.wait_for_all(Clock::now() + std::chrono::seconds(1));
}

// ---- Between two ranks

void GlooRanks::begin(Receiving* receiving, uint64_t slot, const std::string& name, std::span<std::byte> data) {
  const int from = receiving->from;
  receiving->header_in = mesh_->createUnboundBuffer(&receiving->header, sizeof(Header));
  if (!data.empty()) receiving->data_in = mesh_->createUnboundBuffer(data.data(), data.size());
  post(from, [&] {
    receiving->header_in->recv(from, slot, 0, sizeof(Header));
    if (receiving->data_in) receiving->data_in->recv(from, slot_of_data(slot, name, data.size()), 0, data.size());
  });
}

void GlooRanks::begin(Sending* sending, uint64_t slot, const std::string& name, std::span<const std::byte> data) {
  const int to = sending->to;
  sending->header = {hash_of(name), data.size()};
  sending->header_out = mesh_->createUnboundBuffer(&sending->header, sizeof(Header));
  if (!data.empty()) sending->data_out = mesh_->createUnboundBuffer(const_cast<std::byte*>(data.data()), data.size());
  post(to, [&] {
    sending->header_out->send(to, slot, 0, sizeof(Header));
    if (sending->data_out) sending->data_out->send(to, slot_of_data(slot, name, data.size()), 0, data.size());
  });
}

template <typename F>
void GlooRanks::post(int rank, const F& work) {
  const WithoutPipeSignal without;
  try {
    work();
  } catch (const std::exception&) {  // Gloo's: the connection has failed
    fail_because(loss_of(rank, true));
  }
}

template <typename F>
std::string GlooRanks::loss_before(int rank, const F& is_done) {
  for (;;) {
    bool has_failed = false;
    try {
      if (is_done()) return "";
    } catch (const std::exception&) {  // Gloo's
      has_failed = true;
    }
    if (const std::string loss = loss_of(rank, has_failed); !loss.empty()) return loss;
    if (leaves_) return "this rank has ended";
  }
}

void GlooRanks::wait_received(int from, const Buffer& buffer) {
  if (!buffer) return;
  const std::string loss = loss_before(from, [&] { return waits_.received(buffer.get()); });
  if (!loss.empty()) fail_because(loss);
}

std::string GlooRanks::loss_before_sent(const Sending& sending) {
  for (const Buffer* const buffer : {&sending.header_out, &sending.data_out}) {
    if (!*buffer) continue;
    const std::string loss = loss_before(sending.to, [&] { return waits_.sent(buffer->get()); });
    if (!loss.empty()) return loss;
  }
  return "";
}

void GlooRanks::flush_messages() {
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(2);
  for (auto& [to, outbox] : outboxes_)
    outbox.drain_within(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
}

void GlooRanks::flush(const std::list<Sending>& sends, Clock::time_point deadline) {
  for (const Sending& each : sends) {
    for (const Buffer* const buffer : {&each.header_out, &each.data_out}) {
      try {
        while (*buffer && !waits_.sent(buffer->get()) && Clock::now() < deadline) {
        }
      } catch (const std::exception&) {
        // Its receiver is gone.
      }
    }
  }
}

// ---- What ranks do together

void GlooRanks::expect_parcel(int from, Inbox* inbox) {
  post(from, [&] { inbox->buffer->recv(from, kExchangeSlot, 0, sizeof(Parcel)); });
}

void GlooRanks::begin_parcel(Sending* sending, const std::string& what, std::span<const std::byte> data) {
  const int to = sending->to;
  sending->header = {hash_of(what), data.size()};
  const bool is_whole = data.size() <= kInParcel;
  sending->copy.resize(sizeof(Header) + (is_whole ? data.size() : 0));
  std::memcpy(sending->copy.data(), &sending->header, sizeof(Header));
  if (is_whole && !data.empty()) std::memcpy(sending->copy.data() + sizeof(Header), data.data(), data.size());
  sending->header_out = mesh_->createUnboundBuffer(sending->copy.data(), sending->copy.size());
  if (!is_whole) sending->data_out = mesh_->createUnboundBuffer(const_cast<std::byte*>(data.data()), data.size());
  post(to, [&] {
    sending->header_out->send(to, kExchangeSlot, 0, sending->copy.size());
    if (sending->data_out) sending->data_out->send(to, slot_of_data(kExchangeSlot, what, data.size()), 0, data.size());
  });
}

void GlooRanks::take_parcel(Receiving* receiving, const std::string& what, std::span<std::byte> data) {
  const int from = receiving->from;
  std::deque<Inbox>& inboxes = inboxes_[static_cast<size_t>(from)];
  wait_received(from, inboxes.front().buffer);
  Inbox inbox = std::move(inboxes.front());
  inboxes.pop_front();
  const Parcel& parcel = *inbox.parcel;
  if (parcel.header.place != hash_of(what) || parcel.header.bytes != data.size())
    fail_because(at_another_place(static_cast<size_t>(from), rank(), what));
  if (receiving->data_in) {
    wait_received(from, receiving->data_in);
  } else if (!data.empty()) {
    std::memcpy(data.data(), parcel.data.data(), data.size());
  }
  inboxes.push_back(std::move(inbox));
  expect_parcel(from, &inboxes.back());
}

void GlooRanks::transfer(const std::vector<int>& members, const std::string& what,
                         const std::vector<std::span<const std::byte>>& out,
                         const std::vector<std::span<std::byte>>& in) {
  check_cause();
  std::list<std::pair<Receiving, std::span<std::byte>>> receives;
  std::list<Sending> sends;
  try {
    for (size_t i = 0; i < members.size(); ++i) {
      const int other = members[i];
      if (other == rank()) {
        if (!out[i].empty()) std::memcpy(in[i].data(), out[i].data(), out[i].size());
        continue;
      }
      Receiving& receiving = receives.emplace_back(Receiving{other, {}, nullptr, nullptr}, in[i]).first;
      if (in[i].size() <= kInParcel) continue;
      receiving.data_in = mesh_->createUnboundBuffer(in[i].data(), in[i].size());
      post(other,
           [&] { receiving.data_in->recv(other, slot_of_data(kExchangeSlot, what, in[i].size()), 0, in[i].size()); });
    }
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] != rank())
        begin_parcel(&sends.emplace_back(Sending{members[i], {}, {}, nullptr, nullptr}), what, out[i]);
    }
    for (auto& [receiving, data] : receives) take_parcel(&receiving, what, data);
    for (const Sending& each : sends) {
      if (const std::string loss = loss_before_sent(each); !loss.empty()) fail_because(loss);
    }
  } catch (const Error&) {
    // The others get what they wait for, so that the reason comes between two exchanges.
    flush(sends, Clock::now() + std::chrono::seconds(2));
    throw;
  }
}

void GlooRanks::send(const std::string& name, int to, std::span<const std::byte> data) {
  check_cause();
  const auto message = std::make_shared<Sending>(Sending{to, {}, {data.begin(), data.end()}, nullptr, nullptr});
  begin(message.get(), slot_of_message(name), name, message->copy);
  outboxes_[to].add(name, [this, message] { loss_before_sent(*message); });  // who waits for the rank learns of a loss
}

void GlooRanks::receive(const std::string& name, int from, std::span<std::byte> data) {
  check_cause();
  Receiving receiving{from, {}, nullptr, nullptr};
  begin(&receiving, slot_of_message(name), name, data);
  wait_received(from, receiving.header_in);
  if (receiving.header.bytes != data.size())
    fail_because(of_another_size(from, receiving.header.bytes, name, rank(), data.size()));
  wait_received(from, receiving.data_in);
}

// ---- How ranks end

std::string GlooRanks::loss_of(int rank, bool has_failed) {
  const auto r = static_cast<size_t>(rank);
  has_failed = has_failed || is_gone(rank);
  // What it has said last came before its connection ended.
  const LastWords::Said* const said = words_.heard(rank, milliseconds(has_failed ? 500 : 0));
  if (said && (said->kind != LastWords::kEnds || has_failed))
    return heard(r, said->kind == LastWords::kForwards, said->reason);
  return has_failed ? onnx_train::is_gone(r, hosts_[r]) : "";
}

bool GlooRanks::is_gone(int rank) {
  const std::lock_guard lock(probes_mutex_);
  Clock::time_point& last = probed_[rank];
  if (Clock::now() - last < std::chrono::seconds(1)) return false;
  last = Clock::now();
  const WithoutPipeSignal without;
  try {
    probe_->recv(rank, kProbeSlot, 0, 0);  // nothing is ever sent; Gloo throws where the connection has failed
    return false;
  } catch (const std::exception&) {
    last = {};
    return true;
  }
}

void GlooRanks::fail_because(const std::string& cause) {
  const std::lock_guard lock(cause_mutex_);
  if (cause_.empty()) cause_ = cause;
  throw Error(cause_);
}

void GlooRanks::check_cause() {
  const std::lock_guard lock(cause_mutex_);
  if (!cause_.empty()) throw Error(cause_);
}

void GlooRanks::check_ranks() {
  check_cause();
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    if (const std::string loss = loss_of(r, false); !loss.empty()) fail_because(loss);
  }
}

void GlooRanks::leave(const std::string& reason) noexcept {
  try {
    std::unique_lock lock(cause_mutex_);
    if (std::exchange(has_left_, true)) return;
    const LastWords::Kind kind = cause_.empty() ? LastWords::kLeaves : LastWords::kForwards;
    const std::string said = cause_.empty() ? reason : cause_;
    if (cause_.empty()) cause_ = reason.empty() ? "this rank has ended" : reason;
    lock.unlock();
    flush_messages();
    leaves_ = true;  // what waits, in other threads, ends
    words_.say(kind, said);
    words_.wait_for_all(Clock::now() + milliseconds(500));
  } catch (const std::exception&) {
    // There is no memory for the reason.
  }
}

std::unique_ptr<Collectives> connect_over_gloo(const RankPlace& place, Deadline deadline,
                                               const std::function<void(const std::string&)>& on_wait) {
  if (place.address.empty()) {
    fail_as(ErrorCode::kUsage, place.launcher, " has started ", place.size, " processes, ", place.local_size,
            " of them on this machine: set MASTER_ADDR to the host of the first one");
  }
  const FoundRanks met = find_ranks(place, deadline, on_wait);
  auto ranks = std::make_unique<GlooRanks>(connect_mesh(place, met, deadline), met.hosts);
  ranks->gather("the ranks", static_cast<uint32_t>(place.rank));  // then none needs the store
  return ranks;
}

}  // namespace onnx_train
