#include "runtime/distribution/simulated_ranks.h"

#include <algorithm>
#include <cstring>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

double Network::seconds(double bytes_within, double bytes_beyond) const {
  return latency + std::max(bytes_within / bandwidth, bytes_beyond * ranks_of_machine / machine_bandwidth);
}

namespace {

[[noreturn]] void fail_with_another() { fail("another simulated rank has failed"); }

}  // namespace

void Rendezvous::post(int to, const std::string& message, double time) {
  const std::lock_guard lock(mutex_);
  messages_[{to, message}] = time;
  changed_.notify_all();
}

double Rendezvous::take(int to, const std::string& message) {
  std::unique_lock lock(mutex_);
  const auto key = std::pair(to, message);
  changed_.wait(lock, [&] { return is_abandoned_ || messages_.count(key) > 0; });
  if (is_abandoned_) fail_with_another();
  return messages_.extract(key).mapped();
}

double Rendezvous::meet(const std::string& name, int count, double time) {
  std::unique_lock lock(mutex_);
  // Those of the last meeting under this name leave first.
  changed_.wait(lock, [&] { return is_abandoned_ || meetings_[name].came < count; });
  Meeting& meeting = meetings_[name];
  meeting.time = std::max(meeting.time, time);
  ++meeting.came;
  changed_.notify_all();
  changed_.wait(lock, [&] { return is_abandoned_ || meeting.came == count; });
  if (is_abandoned_) fail_with_another();
  const double latest = meeting.time;
  if (++meeting.left == count) meeting = {};
  changed_.notify_all();
  return latest;
}

void Rendezvous::abandon() {
  const std::lock_guard lock(mutex_);
  is_abandoned_ = true;
  changed_.notify_all();
}

double SimulatedRanks::transfer(const std::string& what, double bytes_within, double bytes_beyond, double sent) {
  const bool follows = network_.is_nccl && what == last_;
  last_ = what;
  const double seconds = network_.seconds(bytes_within, bytes_beyond) - (follows ? network_.latency : 0);
  network_seconds_ += seconds;
  bytes_ += sent;
  ++exchanges_;
  stalled_seconds_ += network_.overhead + network_.overhead_of_byte * sent;
  return free_at_ = std::max(free_at_, now()) + seconds;
}

void SimulatedRanks::exchange_among(const std::vector<int>& members, const std::string& what,
                                    const std::vector<std::span<const std::byte>>& out,
                                    const std::vector<std::span<std::byte>>& in) {
  const auto start = Clock::now();
  double within[2] = {}, beyond[2] = {};  // sent, received
  for (size_t i = 0; i < in.size(); ++i) {
    if (!counts_) {
      const std::span<const std::byte> like = out[i].size() == in[i].size() ? out[i] : out[0];
      const size_t known = std::min(like.size(), in[i].size());
      if (known > 0) std::memcpy(in[i].data(), like.data(), known);
      if (in[i].size() > known) std::memset(in[i].data() + known, 0, in[i].size() - known);
    }
    if (members[i] == rank_) continue;
    double* const bytes = is_on_this_machine(members[i]) ? within : beyond;
    bytes[0] += static_cast<double>(out[i].size());
    bytes[1] += static_cast<double>(in[i].size());
  }
  if (network_.is_nccl) {
    for (const int way : {0, 1}) {
      within[way] += beyond[way];
      beyond[way] /= network_.ranks_of_machine;
    }
  }
  spent_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  const auto here =
      static_cast<int>(std::count_if(members.begin(), members.end(), [&](int r) { return r < simulated_; }));
  if (others_ && here > 1) wait_until(others_->meet(what, here, std::max(free_at_, now())));
  const double end =
      transfer(what, std::max(within[0], within[1]), std::max(beyond[0], beyond[1]), within[0] + beyond[0]);
  if (!starts_) wait_until(end);
}

void SimulatedRanks::send(const std::string& name, int to, std::span<const std::byte> data) {
  if (!others_) fail("the stages of a pipeline are simulated together");
  const auto bytes = static_cast<double>(data.size());
  const bool is_within = is_on_this_machine(to);
  others_->post(to, name, transfer(name, is_within ? bytes : 0, is_within ? 0 : bytes, bytes));
}

void SimulatedRanks::receive(const std::string& name, int, std::span<std::byte>) {
  if (!others_) fail("the stages of a pipeline are simulated together");
  wait_until(others_->take(rank_, name));
}

void SimulatedRanks::start(const std::string& name, const std::function<void()>& work) {
  starts_ = true;
  work();
  starts_ = false;
  ends_[name] = free_at_;
}

void SimulatedRanks::wait(const std::string& name) { wait_until(ends_.at(name)); }

void SimulatedRanks::wait_until(double end) { stalled_seconds_ += std::max(0.0, end - now()); }

double SimulatedRanks::compute_seconds() const {
  if (counts_) return computed_seconds_;
  return (std::chrono::duration<double>(Clock::now() - begin_).count() - spent_seconds_) / speed_;
}

void SimulatedRanks::restart(double speed) {
  speed_ = speed;
  begin_ = Clock::now();
  spent_seconds_ = network_seconds_ = stalled_seconds_ = bytes_ = free_at_ = computed_seconds_ = 0;
  exchanges_ = 0;
  ends_.clear();
}

}  // namespace onnx_train
