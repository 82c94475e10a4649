#include "runtime/distribution/mpi/mpi_link.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "onnx_passes/ir/error.h"
#include "runtime/distribution/mpi/wait.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kHeaders = 1, kContents = 2, kHeartbeats = 3;  // tags
constexpr milliseconds kBetweenHeartbeats{500};
constexpr std::chrono::seconds kNoticeOfMpi{5}, kPatienceAtTheEnd{60};

std::string text_of_status(int status) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  return MPI_Error_string(status, text.data(), &length) == MPI_SUCCESS ? text.data() : "an unknown error";
}

void expect_success(int status, const char* call) {
  if (status != MPI_SUCCESS) fail("MPI: ", call, ": ", text_of_status(status));
}

}  // namespace

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
  if (link->state_ == State::kFailed) throw Error(link->failure_);
  return link;
}

MpiLink::MpiLink(const RankPlace& place, milliseconds silence)
    : rank_(place.rank),
      size_(place.size),
      most_silent_(static_cast<int>(silence / kBetweenHeartbeats)),
      hosts_(static_cast<size_t>(size_)),
      peers_(static_cast<size_t>(size_)) {}

// What is under way may still be read and written by MPI: it stays.
MpiLink::~MpiLink() {
  if (!deliveries_.empty()) new std::list<Delivery>(std::move(deliveries_));
}

void MpiLink::run() {
  try {
    initialize();
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex);
    failure_ = error.what();
    state_ = State::kFailed;
    return changed_.notify_all();
  }
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
    const size_t before = deliveries_.size();
    for (auto each = deliveries_.begin(); each != deliveries_.end();)
      each = advance(each->to, &each->requests) ? deliveries_.erase(each) : std::next(each);
    if (deliveries_.empty()) {
      changed_.wait_until(lock, next_heartbeats, [&] { return !deliveries_.empty() || state_ != State::kConnected; });
      wait = Wait();
      continue;
    }
    if (deliveries_.size() != before) wait = Wait();
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
  expect_success(MPI_Finalized(&is_finalized), "MPI_Finalized");
  if (is_finalized) fail("MPI has been finalized in this process, and cannot be initialized again");
  expect_success(MPI_Initialized(&is_initialized), "MPI_Initialized");
  if (is_initialized) {
    expect_success(MPI_Query_thread(&provided), "MPI_Query_thread");
  } else {
    expect_success(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    initialized_here_ = true;
  }
  if (provided != MPI_THREAD_MULTIPLE) {
    fail("MPI serves ", is_initialized ? "one thread alone, as the program has initialized it" : "one thread alone",
         ", and ranks need MPI_THREAD_MULTIPLE: ",
         is_initialized ? "ask for it in MPI_Init_thread" : "take another MPI", ", or take the transport tcp");
  }
  int rank = 0, size = 0;
  MPI_Comm world = MPI_COMM_NULL;
  expect_success(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  expect_success(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (rank != rank_ || size != size_) {
    fail("MPI has started rank ", rank, " of ", size, ", and the environment says rank ", rank_, " of ", size_,
         ": start the command with the mpirun of the MPI that it loads, or take the transport tcp");
  }
  expect_success(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  expect_success(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  std::array<char, MPI_MAX_PROCESSOR_NAME> host{};
  int length = 0;
  expect_success(MPI_Get_processor_name(host.data(), &length), "MPI_Get_processor_name");
  std::vector<char> all(host.size() * static_cast<size_t>(size));
  constexpr int kLength = MPI_MAX_PROCESSOR_NAME;
  expect_success(MPI_Allgather(host.data(), kLength, MPI_CHAR, all.data(), kLength, MPI_CHAR, world), "MPI_Allgather");
  const std::lock_guard lock(mutex);
  world_ = world;
  for (size_t r = 0; r < peers_.size(); ++r) {
    hosts_[r] = &all[r * host.size()];
    if (static_cast<int>(r) == rank_) continue;
    expect_header(r);
    expect_heartbeat(r);
  }
}

bool MpiLink::succeeds(size_t r, int status) {
  if (status != MPI_SUCCESS) peers_[r].silent = most_silent_ + 1;
  return status == MPI_SUCCESS;
}

bool MpiLink::test(size_t r, MPI_Request* request) {
  int done = 0;
  return succeeds(r, MPI_Test(request, &done, MPI_STATUS_IGNORE)) && done;
}

void MpiLink::send(size_t to, const RankHeader& header, const std::byte* contents, Requests* requests) {
  const auto begin = [&](const void* data, uint64_t bytes, int tag) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (succeeds(to, MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(to), tag, world_, &request)))
      requests->push_back(request);
  };
  begin(&header, sizeof(header), kHeaders);
  for (uint64_t done = 0; done < header.bytes; done += kPiece)
    begin(contents + done, std::min(kPiece, header.bytes - done), kContents);
}

void MpiLink::deliver(size_t to, std::vector<std::byte> message) {
  deliveries_.push_back({to, std::move(message), {}, {}});
  Delivery& made = deliveries_.back();  // stays where it is
  std::memcpy(&made.header, made.message.data(), sizeof(made.header));
  send(to, made.header, made.message.data() + sizeof(made.header), &made.requests);
  changed_.notify_all();
}

void MpiLink::expect_header(size_t from) {
  Peer& peer = peers_[from];
  peer.has_header = false;
  succeeds(from,
           MPI_Irecv(&peer.next, sizeof(peer.next), MPI_BYTE, static_cast<int>(from), kHeaders, world_, &peer.header));
}

const RankHeader* MpiLink::header(size_t from) {
  Peer& peer = peers_[from];
  if (!peer.has_header && peer.header != MPI_REQUEST_NULL) peer.has_header = test(from, &peer.header);
  return peer.has_header ? &peer.next : nullptr;
}

void MpiLink::take_header(size_t from) {
  peers_[from].has_header = false;
  if (!peers_[from].next.is_last()) expect_header(from);
}

void MpiLink::receive(size_t from, std::byte* contents, uint64_t bytes, Requests* requests) {
  for (uint64_t done = 0; done < bytes; done += kPiece) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int count = static_cast<int>(std::min(kPiece, bytes - done));
    if (succeeds(from,
                 MPI_Irecv(contents + done, count, MPI_BYTE, static_cast<int>(from), kContents, world_, &request)))
      requests->push_back(request);
  }
}

bool MpiLink::advance(size_t r, Requests* requests) {
  size_t left = 0;
  for (MPI_Request& request : *requests) {
    if (!test(r, &request)) (*requests)[left++] = request;
  }
  requests->resize(left);
  return left == 0;
}

void MpiLink::expect_heartbeat(size_t from) {
  succeeds(from,
           MPI_Irecv(nullptr, 0, MPI_BYTE, static_cast<int>(from), kHeartbeats, world_, &peers_[from].heartbeat_in));
}

void MpiLink::receive_heartbeats(size_t from) {
  Peer& peer = peers_[from];
  while (!is_gone(from) && test(from, &peer.heartbeat_in)) {
    ++peer.heartbeats_received;
    peer.silent = 0;
    expect_heartbeat(from);
  }
}

bool MpiLink::has_heartbeats(size_t from, uint32_t count) {
  receive_heartbeats(from);
  return peers_[from].heartbeats_received == count;
}

void MpiLink::exchange_heartbeats() {
  for (size_t r = 0; r < peers_.size(); ++r) {
    if (static_cast<int>(r) == rank_ || is_gone(r)) continue;
    receive_heartbeats(r);
    Peer& peer = peers_[r];
    ++peer.silent;
    // One that takes none is not sent more.
    if (!beats_ || !test(r, &peer.heartbeat_out)) continue;
    if (succeeds(r, MPI_Isend(nullptr, 0, MPI_BYTE, static_cast<int>(r), kHeartbeats, world_, &peer.heartbeat_out)))
      ++peer.heartbeats_sent;
  }
}

void MpiLink::close(bool finalize) {
  std::unique_lock lock(mutex);
  finalizes_ = finalize;
  state_ = State::kClosing;
  changed_.notify_all();
  changed_.wait_for(lock, kPatienceAtTheEnd, [&] { return state_ == State::kClosed; });
}

// By the thread that has initialized MPI. All that was sent has been received.
void MpiLink::finalize() {
  for (Peer& peer : peers_) {
    for (MPI_Request* const request : {&peer.header, &peer.heartbeat_in}) {
      if (*request != MPI_REQUEST_NULL) MPI_Cancel(request);
      MPI_Wait(request, MPI_STATUS_IGNORE);
    }
    MPI_Wait(&peer.heartbeat_out, MPI_STATUS_IGNORE);
  }
  MPI_Comm_free(&world_);
  if (initialized_here_) MPI_Finalize();
}

}  // namespace onnx_train
