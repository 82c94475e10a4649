#include "runtime/distribution/simulated_ranks.h"

#include <algorithm>
#include <cstring>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

double Network::seconds(double bytes_within, double bytes_beyond) const {
  return latency + std::max(bytes_within / bandwidth, bytes_beyond * ranks_of_machine / machine_bandwidth);
}

void SimulatedRanks::exchange_among(const std::vector<int>&, const std::string&,
                                    const std::vector<std::span<const std::byte>>& out,
                                    const std::vector<std::span<std::byte>>& in) {
  const auto start = Clock::now();
  double within[2] = {}, beyond[2] = {};  // sent, received
  for (size_t r = 0; r < in.size(); ++r) {
    const std::span<const std::byte> like = out[r].size() == in[r].size() ? out[r] : out[0];
    const size_t known = std::min(like.size(), in[r].size());
    if (known > 0) std::memcpy(in[r].data(), like.data(), known);
    if (in[r].size() > known) std::memset(in[r].data() + known, 0, in[r].size() - known);
    if (r == 0) continue;
    double* const bytes = r < static_cast<size_t>(network_.ranks_of_machine) ? within : beyond;
    bytes[0] += static_cast<double>(out[r].size());
    bytes[1] += static_cast<double>(in[r].size());
  }
  const double seconds = network_.seconds(std::max(within[0], within[1]), std::max(beyond[0], beyond[1]));
  network_seconds_ += seconds;
  bytes_ += within[0] + beyond[0];
  ++exchanges_;
  spent_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  stalled_seconds_ += network_.overhead + network_.overhead_of_byte * (within[0] + beyond[0]);
  free_at_ = std::max(free_at_, now()) + seconds;
  if (!starts_) wait_until(free_at_);
}

void SimulatedRanks::send(const std::string&, int, std::span<const std::byte>) {
  fail("the stages of a pipeline are not simulated");
}

void SimulatedRanks::receive(const std::string&, int, std::span<std::byte>) {
  fail("the stages of a pipeline are not simulated");
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
  return (std::chrono::duration<double>(Clock::now() - begin_).count() - spent_seconds_) / speed_;
}

void SimulatedRanks::restart(double speed) {
  speed_ = speed;
  begin_ = Clock::now();
  spent_seconds_ = network_seconds_ = stalled_seconds_ = bytes_ = free_at_ = 0;
  exchanges_ = 0;
  ends_.clear();
}

}  // namespace onnx_train
