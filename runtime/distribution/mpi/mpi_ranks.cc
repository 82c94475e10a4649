#include "runtime/distribution/mpi/mpi_ranks.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "onnx_passes/ir/error.h"
#include "runtime/distribution/mpi/wait.h"
#include "runtime/distribution/rank_messages.h"
#include "runtime/support/text_hash.h"

namespace onnx_train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostElements = size_t{1} << 30;  // that MPI adds up at once
constexpr std::chrono::seconds kMomentAtTheEnd{1};

MpiRanks* open_ranks = nullptr;

}  // namespace

// mpirun takes a program for failed that ends without MPI_Finalize, and the ranks of a library live that long. The
// command ends by quick_exit, other programs by exit.
void MpiRanks::end_with_program() {
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
void MpiRanks::poll(Lock* lock, Deadline deadline, bool soon, const F& f) {
  for (Wait wait(soon ? Wait::kFlowing : Wait::kSoon); !f() && Clock::now() < deadline;) {
    lock->unlock();
    wait.pause();
    lock->lock();
  }
}

void MpiRanks::check_cause() const {
  if (!link_->cause.empty()) fail(link_->cause);
}

void MpiRanks::check_ranks() {
  const Lock lock(link_->mutex);
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) link_->listen(static_cast<size_t>(r), true);
  }
  check_cause();
}

// ---- Messages: a name, a zero byte and the data

void MpiRanks::send(const std::string& name, int to, std::span<const std::byte> data) {
  std::vector<std::byte> message(name.size() + 1 + data.size());
  std::memcpy(message.data(), name.c_str(), name.size() + 1);
  std::ranges::copy(data, message.end() - std::ssize(data));
  const Lock lock(link_->mutex);
  check_cause();
  link_->send(static_cast<size_t>(to), std::move(message));
}

void MpiRanks::receive(const std::string& name, int from, std::span<std::byte> data) {
  Lock lock(link_->mutex);
  check_cause();
  auto found = messages_.find({from, name});
  for (; found == messages_.end(); found = messages_.find({from, name})) read_message(from, &lock);
  const auto sent = std::span(found->second).subspan(name.size() + 1);
  if (sent.size() != data.size()) link_->cause = of_another_size(from, sent.size(), name, rank(), data.size());
  check_cause();
  std::ranges::copy(sent, data.begin());
  messages_.erase(found);
}

void MpiRanks::read_message(int from, Lock* lock) {
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  poll(lock, Deadline::max(), false, [&] {
    const Parcel* const parcel = link_->parcel(static_cast<size_t>(from));
    const bool is_last = parcel && parcel->is_last;  // then a message of before is there, too
    int there = 0;
    expect_mpi(MPI_Improbe(from, MpiLink::kMessages, link_->world(), &there, &message, &status), "MPI_Improbe");
    if (is_last && !there) link_->listen(static_cast<size_t>(from), true);
    return there || !link_->cause.empty();
  });
  if (message == MPI_MESSAGE_NULL) check_cause();
  MPI_Count bytes = 0;
  expect_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &bytes), "MPI_Get_elements_x");
  const auto contents = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Datatype type = type_of(*contents);
  expect_mpi(MPI_Imrecv(MPI_BOTTOM, 1, type, &message, &request), "MPI_Imrecv");
  MPI_Type_free(&type);
  finish({from}, {request}, lock, contents);
  const auto end = std::ranges::find(*contents, std::byte{0});
  if (end == contents->end()) fail("rank ", from, " sends a message without a name");
  messages_[{from, reinterpret_cast<const char*>(contents->data())}] = std::move(*contents);
}

// ---- Exchanges

void MpiRanks::transfer(const std::vector<int>& members, const std::string& what,
                        const std::vector<std::span<const std::byte>>& out,
                        const std::vector<std::span<std::byte>>& in) {
  struct Arguments {
    std::vector<int> ones, zeros;
    std::vector<MPI_Datatype> to, from;
  };
  Lock lock(link_->mutex);
  if (meet(members, what, out, in, &lock)) return;
  const MPI_Comm communicator = communicator_of(members, &lock);
  const size_t count = members.size();
  const auto all = std::make_shared<Arguments>(Arguments{std::vector(count, 1), std::vector(count, 0), {}, {}});
  for (size_t i = 0; i < count; ++i) {
    const auto has_more = [&](size_t size) { return members[i] != rank() && !Parcel::fits(size); };
    all->to.push_back(type_of(out[i].first(has_more(out[i].size()) ? out[i].size() : 0)));
    all->from.push_back(type_of(in[i].first(has_more(in[i].size()) ? in[i].size() : 0)));
  }
  MPI_Request request = MPI_REQUEST_NULL;
  expect_mpi(MPI_Ialltoallw(MPI_BOTTOM, all->ones.data(), all->zeros.data(), all->to.data(), MPI_BOTTOM,
                            all->ones.data(), all->zeros.data(), all->from.data(), communicator, &request),
             "MPI_Ialltoallw");
  finish(members, {request}, &lock, all);
  for (auto* const types : {&all->to, &all->from}) std::ranges::for_each(*types, [](auto& t) { MPI_Type_free(&t); });
}

bool MpiRanks::sum(const std::string& what, DType type, std::span<const std::byte> z, std::span<std::byte> y) {
  if (type != DType::kFloat && type != DType::kDouble) return false;
  wait_for_started();
  Lock lock(link_->mutex);
  std::vector<int> everyone(static_cast<size_t>(size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const std::vector<std::span<std::byte>> nothing(everyone.size());
  meet(everyone, concat("the sum of ", z.size(), " bytes of ", name(type), " of ", what),
       {nothing.begin(), nothing.end()}, nothing, &lock);
  std::vector<MPI_Request> requests;
  for (size_t done = 0; done < z.size();) {
    const size_t count = std::min(kMostElements, (z.size() - done) / size_of(type));
    const void* const terms = z.data() == y.data() ? MPI_IN_PLACE : z.data() + done;
    expect_mpi(
        MPI_Iallreduce(terms, y.data() + done, static_cast<int>(count), type == DType::kFloat ? MPI_FLOAT : MPI_DOUBLE,
                       MPI_SUM, link_->world(), &requests.emplace_back()),
        "MPI_Iallreduce");
    done += count * size_of(type);
  }
  finish(everyone, std::move(requests), &lock);
  return true;
}

bool MpiRanks::meet(const std::vector<int>& members, const std::string& what,
                    const std::vector<std::span<const std::byte>>& out, const std::vector<std::span<std::byte>>& in,
                    Lock* lock) {
  check_cause();
  uint64_t most = 0;
  std::vector<size_t> left;  // members that have not come
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] != rank()) {
      most = std::max<uint64_t>(most, out[i].size());
      left.push_back(i);
    } else if (!out[i].empty() && in[i].data() != out[i].data()) {
      std::memcpy(in[i].data(), out[i].data(), out[i].size());
    }
  }
  const uint32_t place = text_hash(what);
  std::vector<MPI_Request> sends;
  for (const size_t i : left) sends.push_back(link_->send(static_cast<size_t>(members[i]), place, out[i], most));
  const auto has_come = [&](size_t i) {
    const auto r = static_cast<size_t>(members[i]);
    const Parcel* const found = link_->parcel(r);
    if (!found || !link_->cause.empty()) return false;
    link_->listen(r, true);
    if (!found->is_last && (found->place != place || found->bytes != in[i].size()))
      link_->cause = at_another_place(r, rank(), what);
    if (!link_->cause.empty()) return false;
    std::ranges::copy(found->contents(), in[i].begin());
    most = std::max(most, found->most);
    link_->take(r);
    return true;
  };
  poll(lock, Deadline::max(), false, [&] {
    std::erase_if(left, has_come);
    return left.empty() || !link_->cause.empty();
  });
  check_cause();
  finish(members, std::move(sends), lock);
  return Parcel::fits(most);
}

// Each member has met the others when it comes to the second meeting, and then none fails before it calls MPI.
MPI_Comm MpiRanks::communicator_of(const std::vector<int>& members, Lock* lock) {
  if (std::ssize(members) == size()) return link_->world();
  if (const auto found = link_->communicators.find(members); found != link_->communicators.end()) return found->second;
  const std::vector<std::span<std::byte>> nothing(members.size());
  for (const char* const what : {"a communicator", "the same communicator"})
    meet(members, what, {nothing.begin(), nothing.end()}, nothing, lock);
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  expect_mpi(MPI_Comm_group(link_->world(), &all), "MPI_Comm_group");
  expect_mpi(MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &some), "MPI_Group_incl");
  expect_mpi(MPI_Comm_create_group(link_->world(), some, 0, &made), "MPI_Comm_create_group");
  expect_mpi(MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  return link_->communicators.emplace(members, made).first->second;
}

void MpiRanks::finish(const std::vector<int>& members, std::vector<MPI_Request> requests, Lock* lock,
                      std::shared_ptr<void> memory) {
  int done = 0;
  const auto are_done = [&] {
    const int count = static_cast<int>(requests.size());
    expect_mpi(MPI_Testall(count, requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    return done != 0;
  };
  poll(lock, Deadline::max(), true, [&] {
    for (const int r : members) {
      if (r != rank()) link_->listen(static_cast<size_t>(r), false);  // one that has ended has done its part
    }
    return are_done() || !link_->cause.empty();
  });
  if (done) return;
  if (memory) new std::shared_ptr<void>(std::move(memory));  // MPI may go on
  poll(lock, Clock::now() + std::chrono::seconds(2), true, are_done);
  check_cause();
}

// ---- The end

bool MpiRanks::read_to_the_end(Lock* lock, Deadline deadline) {
  const bool had_cause = !link_->cause.empty();
  bool is_well = false;
  poll(lock, deadline, false, [&] {
    bool has_heard = true;
    is_well = true;
    for (size_t r = 0; r < static_cast<size_t>(size()); ++r) {
      if (static_cast<int>(r) == rank()) continue;
      const Parcel* words = link_->parcel(r);
      for (; words && !words->is_last; words = link_->parcel(r)) link_->take(r);
      has_heard &= words != nullptr;
      is_well &= words && words->contents().empty();
    }
    return has_heard || (!had_cause && !link_->cause.empty());
  });
  // A message that its receiver never asks for is not delivered.
  poll(lock, std::min(deadline, Clock::now() + kMomentAtTheEnd), false, [&] { return link_->is_delivered(); });
  return is_well && link_->is_delivered();
}

void MpiRanks::leave(const std::string& reason) noexcept {
  try {
    Lock lock(link_->mutex);
    if (std::exchange(has_ended_, true)) return;
    const bool forwards = !link_->cause.empty();
    link_->say_last(heard(static_cast<size_t>(rank()), forwards, forwards ? link_->cause : reason));
    if (link_->cause.empty()) link_->cause = reason.empty() ? "this rank has ended" : reason;
    read_to_the_end(&lock, Clock::now() + kMomentAtTheEnd);
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
    if (!has_ended_ && !link_->cause.empty()) {
      lock.unlock();
      return leave(link_->cause);
    }
    if (std::exchange(has_ended_, true)) return;
    link_->say_last("");
    const bool is_well = read_to_the_end(&lock, Deadline::max());
    link_->cause = "this rank has ended";
    lock.unlock();
    link_->close(is_well);
  } catch (const std::exception&) {
    // There is no memory for last words.
  }
}

}  // namespace onnx_train
