// What an exchange between the processes of one machine takes of a rank that computes:
//     RANK=0 WORLD_SIZE=2 MASTER_PORT=29500 exchange_bench MICROSECONDS
// for each rank. Each computes for MICROSECONDS, 20 times in a step, and meanwhile exchanges nothing, a few bytes, or
// many. Rank 0 prints a line: microseconds of a step without exchanges, microseconds that an exchange adds, the same of
// one that is awaited at once, and nanoseconds that each byte adds that a rank sends.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime/distribution/ranks.h"

namespace {

using namespace onnx_train;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 20;

double microseconds(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

class Work {
 public:
  explicit Work(double duration) {
    const auto begin = Clock::now();
    do {
      once();
      ++times_;
    } while (microseconds(begin) < 2e4);
    times_ = std::max(1, static_cast<int>(times_ * duration / microseconds(begin)));
  }
  void run() {
    for (int i = 0; i < times_; ++i) once();
  }

 private:
  void once() {
    for (float& x : numbers_) x = 0.5f * x + 1;
  }

  std::vector<float> numbers_ = std::vector<float>(1 << 12);
  int times_ = 0;
};

enum class Meets { kNever, kMeanwhile, kAtOnce };

// The median of steps.
double step(Collectives* ranks, Work* work, Meets meets, size_t bytes) {
  const auto size = static_cast<size_t>(ranks->size());
  std::vector<std::byte> sent(bytes), received(bytes * size);
  const std::vector<std::span<const std::byte>> out(size, sent);
  std::vector<std::span<std::byte>> in;
  for (size_t r = 0; r < size; ++r) in.push_back(std::span(received).subspan(r * bytes, bytes));
  std::vector<double> times(60);
  for (double& time : times) {
    const auto begin = Clock::now();
    for (int i = 0; i < kRounds; ++i) {
      const auto exchange = [&] { ranks->exchange("round", out, in); };
      if (meets == Meets::kMeanwhile) ranks->start("round", exchange);
      work->run();
      if (meets == Meets::kAtOnce) exchange();
    }
    if (meets == Meets::kMeanwhile) ranks->wait("round");
    ranks->gather("step", 0);
    time = microseconds(begin);
  }
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Collectives* const ranks = ranks_of_environment();
    if (argc != 2 || !ranks) return std::fprintf(stderr, "see bench/exchange.cc for what it takes\n"), 2;
    Work work(std::atof(argv[1]));
    constexpr size_t kMany = 1 << 18;
    const double none = step(ranks, &work, Meets::kNever, 0);
    const double few = step(ranks, &work, Meets::kMeanwhile, 64);
    const double at_once = step(ranks, &work, Meets::kAtOnce, 64);
    const double many = step(ranks, &work, Meets::kMeanwhile, kMany);
    const double sent = static_cast<double>(kMany) * (ranks->size() - 1);
    if (ranks->rank() == 0)
      std::printf("%.1f %.2f %.2f %.4f\n", none, (few - none) / kRounds, (at_once - none) / kRounds,
                  1e3 * (many - few) / kRounds / sent);
    ranks->end();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
