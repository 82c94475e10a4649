#include "runtime/distribution/mpi/mpi_link.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "onnx_passes/ir/error.h"
#include "runtime/distribution/mpi/wait.h"
#include "runtime/distribution/rank_messages.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kParcels = 1, kHeartbeats = 3;  // tags
constexpr milliseconds kBetweenHeartbeats{500};
constexpr std::chrono::seconds kNoticeOfMpi{5}, kPatienceAtTheEnd{60};

}  // namespace

void expect_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  const bool has_text = MPI_Error_string(status, text.data(), &length) == MPI_SUCCESS;
  fail("MPI: ", call, ": ", has_text ? text.data() : "an unknown error");
}

MPI_Datatype type_of(std::span<const std::byte> bytes, size_t block) {
  std::vector<int> lengths;
  std::vector<MPI_Aint> addresses;
  for (; !bytes.empty(); bytes = bytes.subspan(static_cast<size_t>(lengths.back()))) {
    lengths.push_back(static_cast<int>(std::min(block, bytes.size())));
    expect_mpi(MPI_Get_address(bytes.data(), &addresses.emplace_back()), "MPI_Get_address");
  }
  MPI_Datatype type = MPI_DATATYPE_NULL;
  const int count = static_cast<int>(lengths.size());
  expect_mpi(MPI_Type_create_hindexed(count, lengths.data(), addresses.data(), MPI_BYTE, &type), "a type of MPI");
  expect_mpi(MPI_Type_commit(&type), "MPI_Type_commit");
  return type;
}

std::shared_ptr<MpiLink> MpiLink::connect(const RankPlace& place, Deadline deadline,
                                          const std::function<void(const std::string&)>& on_wait,
                                          milliseconds silence) {
  const std::shared_ptr<MpiLink> link(new MpiLink(place, silence));
  std::thread([link] { link->run(); }).detach();
  std::unique_lock lock(link->mutex);
  const auto until = [&](Deadline end) {
    return link->changed_.wait_until(lock, end, [&] { return link->state_ != State::kConnecting; });
  };
  const std::string waits =
      concat("rank ", place.rank, " waits in MPI's initialization for the other ranks: see whether ",
             "all have been started, with the same --transport");
  if (!until(std::min(deadline, Clock::now() + kNoticeOfMpi)) && Clock::now() < deadline) {
    if (on_wait) on_wait(waits);
    until(deadline);
  }
  if (link->state_ == State::kConnecting) fail(waits);
  if (link->state_ == State::kFailed) throw Error(link->cause);
  return link;
}

MpiLink::MpiLink(const RankPlace& place, milliseconds silence)
    : rank_(place.rank),
      size_(place.size),
      before_(static_cast<size_t>((rank_ + size_ - 1) % size_)),
      next_(static_cast<size_t>((rank_ + 1) % size_)),
      most_silent_(static_cast<int>(silence / kBetweenHeartbeats)),
      hosts_(static_cast<size_t>(size_)),
      peers_(static_cast<size_t>(size_)) {}

// ---- The thread

void MpiLink::run() {
  try {
    initialize();
    serve();
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex);
    if (cause.empty()) cause = error.what();
    state_ = state_ == State::kConnecting ? State::kFailed : State::kClosed;
    changed_.notify_all();
  }
}

void MpiLink::serve() {
  prctl(PR_SET_TIMERSLACK, 1000);  // ns, of this thread: else it sleeps for 50 us more than it asks for
  std::unique_lock lock(mutex);
  state_ = State::kConnected;
  changed_.notify_all();
  Clock::time_point next_heartbeats = Clock::now();
  Wait wait;
  while (state_ == State::kConnected) {
    if (Clock::now() >= next_heartbeats) {
      exchange_heartbeats();
      next_heartbeats = Clock::now() + kBetweenHeartbeats;
    }
    if (std::erase_if(deliveries_, [&](Delivery& each) { return is_done(each.to, &each.request); }) > 0) wait = Wait();
    if (deliveries_.empty()) {
      changed_.wait_until(lock, next_heartbeats, [&] { return !deliveries_.empty() || state_ != State::kConnected; });
      wait = Wait();
      continue;
    }
    lock.unlock();
    wait.pause();
    lock.lock();
  }
  if (finalizes_) {
    lock.unlock();  // nothing else uses it any more, and this may take long
    finalize();
    lock.lock();
  }
  state_ = State::kClosed;
  changed_.notify_all();
}

void MpiLink::initialize() {
  int is_initialized = 0, provided = MPI_THREAD_SINGLE;
  int is_finalized = 0;
  expect_mpi(MPI_Finalized(&is_finalized), "MPI_Finalized");
  if (is_finalized) fail("MPI has been finalized in this process, and cannot be initialized again");
  expect_mpi(MPI_Initialized(&is_initialized), "MPI_Initialized");
  if (is_initialized) {
    expect_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  } else {
    expect_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    initialized_here_ = true;
  }
  if (provided != MPI_THREAD_MULTIPLE) {
    fail("MPI serves ", is_initialized ? "one thread alone, as the program has initialized it" : "one thread alone",
         ", and ranks need MPI_THREAD_MULTIPLE: ",
         is_initialized ? "ask for it in MPI_Init_thread" : "take another MPI", ", or take the transport tcp");
  }
  int rank = 0, size = 0;
  MPI_Comm world = MPI_COMM_NULL;
  expect_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  expect_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (rank != rank_ || size != size_) {
    fail("MPI has started rank ", rank, " of ", size, ", and the environment says rank ", rank_, " of ", size_,
         ": start the command with the mpirun of the MPI that it loads, or take the transport tcp");
  }
  expect_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  expect_mpi(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  std::array<char, MPI_MAX_PROCESSOR_NAME> host{};
  int length = 0;
  expect_mpi(MPI_Get_processor_name(host.data(), &length), "MPI_Get_processor_name");
  std::vector<char> all(host.size() * static_cast<size_t>(size));
  constexpr int kLength = MPI_MAX_PROCESSOR_NAME;
  expect_mpi(MPI_Allgather(host.data(), kLength, MPI_CHAR, all.data(), kLength, MPI_CHAR, world), "MPI_Allgather");
  const std::lock_guard lock(mutex);
  world_ = world;
  for (size_t r = 0; r < peers_.size(); ++r) {
    hosts_[r] = &all[r * host.size()];
    if (static_cast<int>(r) != rank_) expect_parcel(r);
  }
}

void MpiLink::close(bool finalize) {
  std::unique_lock lock(mutex);
  finalizes_ = finalize;
  if (!finalize) kept_ = shared_from_this();
  state_ = State::kClosing;
  changed_.notify_all();
  changed_.wait_for(lock, kPatienceAtTheEnd, [&] { return state_ == State::kClosed; });
}

// By the thread that has initialized MPI, when all ranks have ended: the last heartbeat is received, then MPI ends.
void MpiLink::finalize() {
  MPI_Request barrier = MPI_REQUEST_NULL;
  const auto finish = [&](size_t r, MPI_Request* request) {
    for (Wait wait; !is_done(r, request); wait.pause()) exchange_heartbeats();
  };
  finish(next_, &heartbeat_out_);
  expect_mpi(MPI_Ibarrier(world_, &barrier), "MPI_Ibarrier");
  finish(next_, &barrier);
  if (heartbeat_in_ != MPI_REQUEST_NULL) MPI_Cancel(&heartbeat_in_);
  MPI_Wait(&heartbeat_in_, MPI_STATUS_IGNORE);
  for (auto& [members, communicator] : communicators) MPI_Comm_free(&communicator);
  MPI_Comm_free(&world_);
  if (initialized_here_) MPI_Finalize();
}

// ---- What ranks tell each other

bool MpiLink::succeeds(size_t r, int status) {
  if (status != MPI_SUCCESS && cause.empty()) cause = is_gone(r, hosts_[r]);
  return status == MPI_SUCCESS;
}

bool MpiLink::is_done(size_t r, MPI_Request* request) {
  int done = 0;
  return succeeds(r, MPI_Test(request, &done, MPI_STATUS_IGNORE)) && done;
}

MPI_Request MpiLink::send(size_t to, uint32_t place, std::span<const std::byte> data, uint64_t most) {
  Parcel& parcel = peers_[to].out;  // the one before has been sent
  parcel.place = place;
  parcel.bytes = data.size();
  parcel.most = most;
  std::ranges::copy(data.first(parcel.contents().size()), parcel.data.begin());
  MPI_Request request = MPI_REQUEST_NULL;
  const int length = static_cast<int>(parcel.sent().size());
  succeeds(to, MPI_Isend(&parcel, length, MPI_BYTE, static_cast<int>(to), kParcels, world_, &request));
  return request;
}

void MpiLink::expect_parcel(size_t from) {
  Peer& peer = peers_[from];
  peer.has_parcel = false;
  succeeds(from,
           MPI_Irecv(&peer.in, sizeof(Parcel), MPI_BYTE, static_cast<int>(from), kParcels, world_, &peer.request));
}

const Parcel* MpiLink::parcel(size_t from) {
  Peer& peer = peers_[from];
  if (!peer.has_parcel && peer.request != MPI_REQUEST_NULL) peer.has_parcel = is_done(from, &peer.request);
  return peer.has_parcel ? &peer.in : nullptr;
}

void MpiLink::take(size_t from) {
  if (!peers_[from].in.is_last) expect_parcel(from);
}

void MpiLink::listen(size_t r, bool ends) {
  const Parcel* const found = parcel(r);
  if (!found || !found->is_last || !cause.empty()) return;
  cause.assign(reinterpret_cast<const char*>(found->data.data()), found->contents().size());
  if (cause.empty() && ends) cause = is_gone(r, hosts_[r]);
}

void MpiLink::say_last(const std::string& why) {
  if (std::exchange(has_said_last_, true)) return;
  Parcel words;
  words.is_last = 1;
  words.bytes = std::min(why.size(), Parcel::kRoom);
  std::memcpy(words.data.data(), why.data(), words.bytes);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) deliver(static_cast<size_t>(r), kParcels, {words.sent().begin(), words.sent().end()});
  }
}

void MpiLink::deliver(size_t to, int tag, std::vector<std::byte> contents) {
  Delivery& made = deliveries_.emplace_back(Delivery{to, std::move(contents)});  // stays where it is
  MPI_Datatype type = type_of(made.contents);
  succeeds(to, MPI_Isend(MPI_BOTTOM, 1, type, static_cast<int>(to), tag, world_, &made.request));
  MPI_Type_free(&type);
  changed_.notify_all();
}

// MPI_Issend is done when the heartbeat has been received. A rank that closes sends no more.
void MpiLink::exchange_heartbeats() {
  while (size_ > 1 && is_done(before_, &heartbeat_in_)) {  // also at first
    silent_ = 0;
    const int from = static_cast<int>(before_);
    if (!succeeds(before_, MPI_Irecv(nullptr, 0, MPI_BYTE, from, kHeartbeats, world_, &heartbeat_in_))) break;
  }
  if (size_ == 1 || state_ != State::kConnected || !cause.empty()) return;
  if (++silent_ > most_silent_) {
    cause = is_gone(before_, hosts_[before_]);
    say_last(cause);
  } else if (is_done(next_, &heartbeat_out_)) {
    const int to = static_cast<int>(next_);
    succeeds(next_, MPI_Issend(nullptr, 0, MPI_BYTE, to, kHeartbeats, world_, &heartbeat_out_));
  }
}

}  // namespace onnx_train
