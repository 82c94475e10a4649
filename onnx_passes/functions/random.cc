// Random numbers as pure functions of a key, a stream and an element's index: Philox4x32-10 (Salmon, Moraes, Dror,
// Shaw: Parallel random numbers, as easy as 1, 2, 3; SC 2011), written out in uint64 operators of 32-bit words.
// kernels/math/philox.h is the same in C++; both give the same bits.
#include <array>
#include <numbers>

#include "onnx_passes/functions/body.h"

namespace onnx_train {
namespace {

constexpr int kRounds = 10;
constexpr uint32_t kWeyl[] = {0x9E3779B9u, 0xBB67AE85u};  // what the two key words grow by in each round
constexpr uint32_t kMultipliers[] = {3528531795u, 3449720151u};

Term low_bits(const Term& x) {
  return x.body()->op("BitwiseAnd", {x, x.body()->constant(DType::kUint64, ~uint32_t{0})});
}
Term shifted_right(const Term& x, int bits) {
  return x.body()->op("BitShift", {x, x.body()->constant(DType::kUint64, bits)}, "direction = \"RIGHT\"");
}
Term high_bits(const Term& x) { return shifted_right(x, 32); }
Term exclusive_or(const Term& a, const Term& b) { return a.body()->op("BitwiseXor", {a, b}); }

// uint64[count], each below 2^32, of `key` (uint64[2]: seed, counter), the attribute `stream`, and the number of
// elements (int64). The counter block of element i is (i / 4 as 64 bits, stream, counter), the element's word i % 4.
Term philox_words(Body& f, const Term& key, const Term& count) {
  const Term seed = gather(key, 0), counter = low_bits(gather(key, 1));
  const std::array<Term, 2> words = {low_bits(seed), high_bits(seed)};
  const Term block = cast(range((count + 3) / 4), DType::kUint64), nothing = exclusive_or(block, block);
  const Term stream = cast(f.attribute("stream"), DType::kUint64);
  const auto spread = [&](const Term& word) { return f.op("BitwiseOr", {nothing, word}); };
  std::array<Term, 4> c = {low_bits(block), high_bits(block), spread(stream), spread(counter)};
  for (uint32_t round = 0; round < kRounds; ++round) {
    const auto grown = [&](size_t i) {
      return low_bits(words[i] + f.constant(DType::kUint64, static_cast<uint32_t>(round * kWeyl[i])));
    };
    const auto product = [&](size_t i) { return c[2 * i] * f.constant(DType::kUint64, kMultipliers[i]); };
    const Term product0 = product(0), product1 = product(1);
    c = {exclusive_or(exclusive_or(high_bits(product1), c[1]), grown(0)), low_bits(product1),
         exclusive_or(exclusive_or(high_bits(product0), c[3]), grown(1)), low_bits(product0)};
  }
  Terms columns;
  for (const Term& word : c) columns.push_back(unsqueeze(word, {1}));
  return slice(reshape(concat(columns, 1), {-1}), {0}, reshape(count, {-1}));
}

// float[count]: the upper 24 bits of each word times 2^-24, so in [0, 1).
Term uniform(Body& f, const Term& key, const Term& count) {
  return cast(shifted_right(philox_words(f, key, count), 8), DType::kFloat) * 0x1p-24;
}

// x / (1 - ratio) where kept, 0 elsewhere
Term dropped(const Term& x, const Term& mask, const Term& ratio) {
  return where(mask, x / (1 - cast_like(ratio, x)), 0);
}

// An element is kept when its uniform number is at least `ratio`.
Terms dropout(Body& f, const Term& x, const Term& key, const Term& ratio) {
  const Term numbers = reshape(uniform(f, key, size(x)), shape(x));
  const Term mask = numbers >= cast(ratio, DType::kFloat);
  return {dropped(x, mask, ratio), mask};
}

// y = low + (high - low) u, of the given shape
Term random_uniform(Body& f, const Term& key, const Term& shape) {
  const Term low = f.attribute("low"), width = f.attribute("high") - low;
  return reshape(uniform(f, key, reduce_prod(shape, /*keepdims=*/false)) * width + low, shape);
}

// Box and Muller: elements 2i and 2i + 1 share u1 in (0, 1] and u2 in [0, 1); they are
//   mean + scale sqrt(-2 ln u1) cos(2π u2)  and the same with sin.
Term random_normal(Body& f, const Term& key, const Term& shape) {
  const Term wanted = reduce_prod(shape, /*keepdims=*/false);
  const Term pairs = reshape(uniform(f, key, (wanted + 1) / 2 * 2), {-1, 2});
  const Term u1 = 1 - gather(pairs, {0}, 1), angle = gather(pairs, {1}, 1) * (2 * std::numbers::pi);
  const Term radius = sqrt(log(u1) * -2);
  const Term standard = concat({radius * f.op("Cos", {angle}), radius * f.op("Sin", {angle})}, 1);
  const Term cut = slice(reshape(standard, {-1}), {0}, reshape(wanted, {-1}));
  return reshape(cut * f.attribute("scale") + f.attribute("mean"), shape);
}

}  // namespace

std::vector<FunctionRow> random_functions() {
  return {
      function("Dropout <stream: int = 0> (x, key, ratio) => (y, mask)", dropout),
      function("DropoutGrad (dy, mask, ratio) => (dx)", dropped),
      function("RandomUniform <stream: int = 0, low: float = 0.0, high: float = 1.0> (key, int64 shape) => (y)",
               random_uniform),
      function("RandomNormal <stream: int = 0, mean: float = 0.0, scale: float = 1.0> (key, int64 shape) => (y)",
               random_normal),
  };
}

}  // namespace onnx_train
