// Convolutions as matrix products without stored operands: c = a b. A block computes a tile of c from slabs of a and b,
// which it gathers into shared memory. Rows, columns and depth of the product are
//
//   forward           outputs channels     windows of all images      input channels and taps
//   input gradient    input channels       positions of all images    output channels and taps
//   weight gradient   output channels      input channels and taps    windows of all images
//
// A column and a step of the depth determine the place of an element of b: it is the sum of two offsets and of two
// positions, or padding. Operands are stored as S, results as C; T is the type of sums.
#include "kernels/cuda/convolution/convolutions.h"
#include "kernels/cuda/convolution/plan.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

constexpr int kTile = 64;  // rows and columns of a tile
constexpr int kSlab = 16;  // depth of a slab
constexpr int kEach = 4;   // a thread computes kEach x kEach elements
constexpr int kSide = kTile / kEach;
static_assert(kSide * kSide == kThreads && kSlab == kSide);

// A summand of an element's place: an offset, and a position along the three axes.
struct Place {
  int64_t offset;
  int32_t z, y, x;
};

// A step of the depth: the place of a's element relative to its row, and of b's relative to its column. Steps after the
// last are not valid.
struct DepthStep {
  int64_t a;
  Place b;
  bool valid;
};

struct TiledPlan {
  ConvPlan conv;
  ImageIndexing taps = {};  // channels and taps
  int64_t rows = 0, columns = 0, depth = 0;
  int64_t a_row = 0, c_row = 0;   // elements between rows of a and of c
  int64_t pieces = 1, piece = 0;  // pieces of the depth
};

__device__ Place placed(const WindowAxis& height, const WindowAxis& width, int64_t offset, int64_t z, int64_t y,
                        int64_t x) {
  return {offset + (z * height.in + y) * width.in + x, static_cast<int32_t>(z), static_cast<int32_t>(y),
          static_cast<int32_t>(x)};
}

// Place of window j of all images: the first position that it reads in the first channel of the group.
__device__ Place window_place(const TiledPlan& plan, int64_t group, int64_t j) {
  const ConvPlan& c = plan.conv;
  const PlacedElement w = c.windows.element(j);
  return placed(c.axes[1], c.axes[2], (w.image * c.groups + group) * c.ins * c.in_size, c.axes[0].at(w.z, 0),
                c.axes[1].at(w.y, 0), c.axes[2].at(w.x, 0));
}

// Place of input channel and tap k, relative to the first position of a window.
__device__ Place tap_place(const TiledPlan& plan, int64_t k) {
  const ConvPlan& c = plan.conv;
  const PlacedElement tap = plan.taps.element(k);
  return placed(c.axes[1], c.axes[2], tap.image * c.in_size, tap.z * c.axes[0].dilation, tap.y * c.axes[1].dilation,
                tap.x * c.axes[2].dilation);
}

template <Direction kDirection>
__device__ Place column_place(const TiledPlan& plan, int64_t group, int64_t j) {
  if constexpr (kDirection == Direction::kForward) return window_place(plan, group, j);
  if constexpr (kDirection == Direction::kWeightGradient) return tap_place(plan, j);
  if constexpr (kDirection == Direction::kInputGradient) {
    const ConvPlan& c = plan.conv;
    const PlacedElement q = c.positions.element(j);
    return {(q.image * c.groups + group) * c.outs * c.out_size, static_cast<int32_t>(q.z + c.axes[0].begin),
            static_cast<int32_t>(q.y + c.axes[1].begin), static_cast<int32_t>(q.x + c.axes[2].begin)};
  }
}

template <Direction kDirection>
__device__ DepthStep depth_step(const TiledPlan& plan, int64_t group, int64_t k) {
  const ConvPlan& c = plan.conv;
  if constexpr (kDirection == Direction::kForward) return {k, tap_place(plan, k), true};
  if constexpr (kDirection == Direction::kWeightGradient) {
    const int64_t image = c.by_out_size.quotient(k);
    return {image * c.groups * c.outs * c.out_size + k - image * c.out_size, window_place(plan, group, k), true};
  }
  if constexpr (kDirection == Direction::kInputGradient) {
    const PlacedElement tap = plan.taps.element(k);  // its image is the output channel
    const int64_t number = k - tap.image * c.taps;
    const Place b{tap.image * c.out_size, static_cast<int32_t>(tap.z * c.axes[0].dilation),
                  static_cast<int32_t>(tap.y * c.axes[1].dilation), static_cast<int32_t>(tap.x * c.axes[2].dilation)};
    return {tap.image * c.ins * c.taps + number, b, true};
  }
}

// The window along an axis whose first position is `way` after that of the first window, or -1.
__device__ int64_t window_at(const ConvPlan& c, int axis, int32_t way) {
  if (way < 0) return -1;
  const int64_t o = c.strides[axis].quotient(way);
  return o * c.axes[axis].stride == way && o < c.axes[axis].out ? o : -1;
}

template <Direction kDirection, typename S>
__device__ Computed<S> element(const ConvPlan& c, const S* b, const Place& column, const Place& step) {
  if constexpr (kDirection == Direction::kInputGradient) {
    const int64_t z = window_at(c, 0, column.z - step.z), y = window_at(c, 1, column.y - step.y),
                  x = window_at(c, 2, column.x - step.x);
    if (z < 0 || y < 0 || x < 0) return 0;
    return widened(b[column.offset + step.offset + (z * c.axes[1].out + y) * c.axes[2].out + x]);
  } else {
    const int64_t z = column.z + step.z, y = column.y + step.y, x = column.x + step.x;
    const bool inside = z >= 0 && z < c.axes[0].in && y >= 0 && y < c.axes[1].in && x >= 0 && x < c.axes[2].in;
    return inside ? widened(b[column.offset + step.offset]) : Computed<S>{0};
  }
}

// Offset of column j of c.
template <Direction kDirection>
__device__ int64_t result_place(const TiledPlan& plan, int64_t group, int64_t j) {
  const ConvPlan& c = plan.conv;
  if constexpr (kDirection == Direction::kWeightGradient) return group * plan.rows * plan.c_row + j;
  const Divider& size = kDirection == Direction::kForward ? c.by_out_size : c.by_in_size;
  const int64_t image = size.quotient(j);
  return (image * c.groups + group) * plan.rows * plan.c_row + j - image * plan.c_row;
}

// Offset of row 0 of a.
template <Direction kDirection>
__device__ int64_t group_place(const TiledPlan& plan, int64_t group) {
  const ConvPlan& c = plan.conv;
  return kDirection == Direction::kWeightGradient ? group * c.outs * c.out_size : group * c.outs * c.ins * c.taps;
}

// Block (x, y, z): tile of columns, tile of rows, group and piece of the depth. Piece p of c starts p·c_size elements
// after c. A bias that is not null is added per row.
template <Direction kDirection, typename S, typename C, typename T = Computed<S>>
__global__ void conv_tiled(TiledPlan plan, int64_t c_size, const S* a, const S* b, const T* bias, C* c) {
  GPU_SHARED(a_slab, T[kSlab][kTile + 1]);
  GPU_SHARED(b_slab, T[kSlab][kTile]);
  GPU_SHARED(steps, DepthStep[kSlab]);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t group = blockIdx.z / plan.pieces, number = blockIdx.z - group * plan.pieces;
  const int64_t first_row = int64_t{blockIdx.y} * kTile, first_column = int64_t{blockIdx.x} * kTile;
  const int64_t first = number * plan.piece, end = first + plan.piece < plan.depth ? first + plan.piece : plan.depth;
  const int64_t column = first_column + thread % kTile;
  const bool has_column = column < plan.columns;
  const Place place = has_column ? column_place<kDirection>(plan, group, column) : Place{0, 0, 0, 0};
  a += group_place<kDirection>(plan, group);

  T sums[kEach][kEach] = {};
  for (int64_t k = first; k < end; k += kSlab) {
    if (thread < kSlab) {
      steps[thread] =
          k + thread < end ? depth_step<kDirection>(plan, group, k + thread) : DepthStep{0, {0, 0, 0, 0}, false};
    }
    __syncthreads();
    const DepthStep& of_a = steps[thread % kSlab];
    for (int row = thread / kSlab; row < kTile; row += kThreads / kSlab) {
      const bool inside = of_a.valid && first_row + row < plan.rows;
      a_slab[thread % kSlab][row] = inside ? widened(a[(first_row + row) * plan.a_row + of_a.a]) : T{0};
    }
    for (int d = thread / kTile; d < kSlab; d += kThreads / kTile) {
      const bool inside = has_column && steps[d].valid;
      b_slab[d][thread % kTile] = inside ? element<kDirection>(plan.conv, b, place, steps[d].b) : T{0};
    }
    __syncthreads();
    for (int d = 0; d < kSlab; ++d) {
      for (int i = 0; i < kEach; ++i) {
        const T from_a = a_slab[d][thread / kSide + i * kSide];
        for (int j = 0; j < kEach; ++j) sums[i][j] += from_a * b_slab[d][thread % kSide + j * kSide];
      }
    }
    __syncthreads();
  }

  c += number * c_size;
  for (int j = 0; j < kEach; ++j) {
    const int64_t to = first_column + thread % kSide + j * kSide;
    if (to >= plan.columns) continue;
    C* const result = c + result_place<kDirection>(plan, group, to);
    for (int i = 0; i < kEach; ++i) {
      const int64_t row = first_row + thread / kSide + i * kSide;
      const T sum = sums[i][j];
      if (row < plan.rows)
        result[row * plan.c_row] = math::convert<C>(bias ? sum + bias[group * plan.rows + row] : sum);
    }
  }
}

template <typename T, typename C>
__global__ void add_pieces(int64_t n, int64_t pieces, const T* partials, C* c) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  T sum = partials[i];
  for (int64_t p = 1; p < pieces; ++p) sum += partials[p * n + i];
  c[i] = math::convert<C>(sum);
}

int64_t tiles(int64_t n) { return (n + kTile - 1) / kTile; }

TiledPlan make_plan(const Convolution& c, Direction direction) {
  TiledPlan plan{.conv = ConvPlan(c)};
  const ConvPlan& conv = plan.conv;
  const WindowGeometry& g = conv.axes;
  plan.taps = {Divider(1), Divider(g[0].kernel), Divider(g[1].kernel), Divider(g[2].kernel)};
  const int64_t windows = conv.images * conv.out_size, positions = conv.images * conv.in_size;
  const bool of_inputs = direction == Direction::kInputGradient, of_weights = direction == Direction::kWeightGradient;
  plan.rows = of_inputs ? conv.ins : conv.outs;
  plan.columns = of_inputs ? positions : of_weights ? conv.ins * conv.taps : windows;
  plan.depth = of_inputs ? conv.outs * conv.taps : of_weights ? windows : conv.ins * conv.taps;
  plan.a_row = of_inputs ? conv.taps : of_weights ? conv.out_size : conv.ins * conv.taps;
  plan.c_row = of_inputs ? conv.in_size : of_weights ? conv.ins * conv.taps : conv.out_size;
  if (of_weights) {  // few tiles, long sums
    constexpr int64_t kBlocks = 512, kLeast = 512, kMost = 64;
    const int64_t blocks = tiles(plan.rows) * tiles(plan.columns) * conv.groups;
    plan.pieces = std::clamp<int64_t>(std::min(kBlocks / blocks, plan.depth / kLeast), 1, kMost);
  }
  plan.piece = (plan.depth + plan.pieces - 1) / plan.pieces;
  return plan;
}

}  // namespace

bool prefers_tiled(const Convolution& c, Direction direction) {
  constexpr int64_t kLargest = int64_t{1} << 28;  // positions are 32-bit numbers
  constexpr int64_t kMostBlocks = 65535, kFew = 16;
  if (num_elements(c.x) == 0 || num_elements(c.w) == 0 || num_elements(c.y) == 0) return false;
  const TiledPlan plan = make_plan(c, direction);
  for (const WindowAxis& axis : plan.conv.axes) {
    if (axis.in > kLargest || axis.out > kLargest || axis.begin > kLargest || axis.out * axis.stride > kLargest ||
        axis.kernel * axis.dilation > kLargest)
      return false;
  }
  return plan.rows >= kFew && plan.columns >= kFew && tiles(plan.rows) <= kMostBlocks &&
         plan.conv.groups * plan.pieces <= kMostBlocks && tiles(plan.columns) <= 0x7fffffff;
}

template <Direction kDirection, typename S, typename C>
Prepared prepare_tiled(const NodeSpec& spec, const Convolution& c) {
  using T = Computed<S>;
  const TiledPlan plan = make_plan(c, kDirection);
  const dim3 grid(static_cast<unsigned>(tiles(plan.columns)), static_cast<unsigned>(tiles(plan.rows)),
                  static_cast<unsigned>(plan.conv.groups * plan.pieces));
  const bool biased = has_bias(spec, kDirection);
  const int64_t size = spec.out_size();
  const auto multiply = [=]<typename To>(const Launch& launch, To* to) {
    enqueue(launch, "conv_tiled", conv_tiled<kDirection, S, To>, grid, kThreads, 0, plan, size, launch.in<S>(1),
            launch.in<S>(0), biased ? launch.in<T>(2) : nullptr, to);
  };
  if (plan.pieces == 1) return {[=](const Launch& launch) { multiply(launch, launch.out<C>()); }};
  const auto run = [=](const Launch& launch) {
    T* const partials = launch.scratch<T>();
    multiply(launch, partials);
    enqueue(launch, "add_pieces", add_pieces<T, C>, blocks_for(size), kThreads, 0, size, plan.pieces, partials,
            launch.out<C>());
  };
  return {run, static_cast<size_t>(plan.pieces * size) * sizeof(T)};
}

Prepared prepare_tiled(const NodeSpec& spec, const Convolution& c, Direction direction) {
  return dispatch_stored_pair(spec.in_type(), spec.out_type(), [&]<typename S, typename C>(S, C) -> Prepared {
    if constexpr (!math::kIsHalf<S> && math::kIsHalf<C>) {
      fail(spec.node().label(), ": operands of 32 bits with a result of 16 bits");
    } else {
      switch (direction) {
        case Direction::kForward: return prepare_tiled<Direction::kForward, S, C>(spec, c);
        case Direction::kInputGradient: return prepare_tiled<Direction::kInputGradient, S, C>(spec, c);
        default: return prepare_tiled<Direction::kWeightGradient, S, C>(spec, c);
      }
    }
  });
}

}  // namespace onnx_train::cuda
