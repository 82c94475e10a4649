// Random numbers that depend on what they are for alone, the same on every platform: the order of samples, and how a
// sample is augmented. Plain values; any thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numbers>

namespace onnx_train {

// Vigna's splitmix64: the state advances by a constant, and the output is a hash of it.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t state) : state_(state) {}
  // The stream of a key such as (seed, epoch, sample).
  SplitMix64(std::initializer_list<uint64_t> key) : state_(0) {
    for (const uint64_t part : key) state_ = next() ^ part;
  }

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound): draws again for values in the last, incomplete multiple of `bound`.
  uint64_t below(uint64_t bound) {
    const uint64_t excess = (~bound + 1) % bound;  // 2^64 mod bound
    for (;;) {
      const uint64_t x = next();
      if (x >= excess) return x % bound;
    }
  }

  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // in [0, 1)
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  int integer(int low, int high) {  // in [low, high]
    return low + static_cast<int>(below(static_cast<uint64_t>(high - low) + 1));
  }
  double normal() {  // Box and Muller
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }
  // Marsaglia and Tsang, A simple method for generating gamma variables (2000).
  double gamma(double shape) {
    if (shape < 1) return gamma(shape + 1) * std::pow(1 - uniform(), 1 / shape);
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = normal(), v = std::pow(1 + c * x, 3);
      if (v > 0 && std::log(1 - uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
    }
  }
  double beta(double a, double b) {
    const double x = gamma(a), y = gamma(b);
    return x + y > 0 ? x / (x + y) : 0.5;
  }

 private:
  uint64_t state_;
};

}  // namespace onnx_train
