// ONNX's random operators (is_random of operators/random.h) as functions of a key that is a value of the graph, as
// Dropout's is: bits that every runtime computes alike. Functions on graphs that one caller owns; they throw Error that
// names the node.
#pragma once

#include "onnx_passes/inference/builder.h"

namespace onnx_train {

// Adds what computes the output of `node`, of its type, from the node's inputs, `key` (uint64[2]: RandomKey of
// kernels/math/philox.h) and a stream, which no other node that draws from the key may have.
//
//   RandomUniform, RandomUniformLike   low + (high - low) u
//   RandomNormal, RandomNormalLike     mean + scale z
//   Bernoulli                          u < p: never where p is 0 or not a number, always where it is 1 or more
//   Multinomial                        the first class whose cumulative probability is above u
//
// u is uniform in [0, 1), a multiple of 2^-24; z is made of two such numbers by Box and Muller. A float64 output has
// these float32 numbers.
Var draw(Builder& b, const Node& node, const std::vector<Var>& inputs, Var key, int stream);

// The key with the number of the node's attribute `seed` in the place of its seed; the key itself without one.
// `first_key` is the key before loops around the node have added to its seed.
Var seeded(const Node& node, Var key, Var first_key);

}  // namespace onnx_train
