// Device code that the cells of RNN, GRU and LSTM share. Layouts are those of kernels/geometry/recurrent.h.
//
// A cell is a plain value, a parameter of the kernels that run it: one step after the other (walk.h), or all steps in
// one launch (persistent.h). A thread computes one element, a hidden unit of a sample, in one or two phases. Each phase
// reads a product with rows of R. A cell has
//
//   kForward, kPhases             the rows of R in each phase's product: operand Rᵀ, or operand R in a gradient
//   load<phase>(at)               what the phase reads of memory; `sums` of it gets the phase's product
//   step<phase>(at, loaded)       computes, writes, and returns the element's part of the next product's operand
//   first_operand(at)             forward: that of the first product
//   finish(at, loaded)            in a gradient: writes dh, which is in `sums` after the last product
#pragma once

#include "kernels/cuda/recurrent/persistent_plan.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/geometry/recurrent.h"
#include "kernels/math/convert.h"
#include "kernels/math/gates.h"

namespace onnx_train::cuda {

// What every cell knows of its node.
struct CellNode {
  Extents e;
  Order order;
  const int32_t* lengths;  // lengths of the samples, or null
  float clip;              // bound of the activations' inputs; 0: none
  bool rounds_operands, rounds_gates;
  GateActivation activations[2][3];  // per direction: f g h

  CellNode(const Extents& extents, const Order& steps, const Recurrence& recurrence, const int32_t* lens)
      : e(extents),
        order(steps),
        lengths(lens),
        clip(recurrence.clip),
        rounds_operands(recurrence.round_operands),
        rounds_gates(recurrence.round_gates) {
    for (int64_t d = 0; d < e.directions; ++d) {
      for (int i = 0; i < recurrence.activations_per_direction(); ++i) activations[d][i] = recurrence.activation(d, i);
    }
  }
};

// Unit j of sample b in step t of direction d, with its offsets.
struct CellElement {
  int64_t t, d, j;
  int64_t gate;   // of the unit's first gate in [T, B, D, n H]; gates are H apart
  int64_t value;  // in [T, D, B, H]
  int64_t state;  // in [D, B, H]
  bool live;      // the sample has the step

  __device__ CellElement(const CellNode& n, int64_t t_, int64_t d_, int64_t b, int64_t j_)
      : t(t_),
        d(d_),
        j(j_),
        gate(n.e.gate(t, d, b) + j),
        value(n.e.value(t, d, b) + j),
        state(n.e.state(d, b) + j),
        live(is_live(n.lengths, t, b)) {}
};

// A base of cells: the direction of their walk, and the rows of R in the product of each phase.
template <bool kIsForward, GateRows... kRowsOfR>
struct Phases {
  static constexpr bool kForward = kIsForward;
  static constexpr GateRows kPhases[] = {kRowsOfR...};
};

// An element's part of an operand: one value, or one for each gate.
template <typename T, int kGates>
struct OperandPart {
  T values[kGates];
};

// f(x), with x clipped first.
template <typename T>
__device__ T activate(const GateActivation& f, float clip, T x) {
  const T most = clip;
  if (clip != 0) x = x < -most ? -most : x > most ? most : x;
  return math::with_activation<T>(f, [x](auto function) { return function(x); });
}

// dy f'(x), from y = f(x).
template <typename T>
__device__ T differentiate(const GateActivation& f, T y, T dy) {
  return math::with_slope<T>(f, [dy, y](auto slope) { return slope(dy, y); });
}

// x, or the nearest bfloat16 number.
template <typename T>
__device__ T rounded(bool rounds, T x) {
  return rounds ? math::convert<T>(math::convert<BFloat16>(x)) : x;
}

// Computes a phase of one step of one direction; the product is in the memory that the cell loads.
template <int kPhase, typename Cell>
__global__ void cell_step(int64_t elements, Cell cell, int64_t t, int64_t d, Divider hidden) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= elements) return;
  const int64_t b = hidden.quotient(i);
  const CellElement at(cell, t, d, b, i - b * hidden.divisor());
  auto loaded = cell.template load<kPhase>(at);
  cell.template step<kPhase>(at, loaded);
}

}  // namespace onnx_train::cuda
