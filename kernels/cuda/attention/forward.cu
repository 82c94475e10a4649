// Prepares BlockAttention by our kernels.
#include "kernels/cuda/attention/attend.h"
#include "kernels/cuda/attention/prepared_attention.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/dispatch.h"
#include "kernels/place.h"

namespace onnx_train::cuda {
namespace {

// Calls f(tiles) with the tiles for rows of up to `width` elements; returns false if there are none.
template <typename T, typename F>
bool dispatch_forward_tiles(int64_t width, const F& f) {
  constexpr bool kIsFloat = std::is_same_v<T, float>;
  if (width <= 64) return f(std::conditional_t<kIsFloat, AttentionTiles<64, 128, 64>, AttentionTiles<64, 32, 32>>());
  if (width <= 128) return f(std::conditional_t<kIsFloat, AttentionTiles<128, 64, 32>, AttentionTiles<128, 32, 16>>());
  if constexpr (kIsFloat) {
    if (width <= 256) return f(AttentionTiles<256, 32, 16>());
  }
  return false;
}

// As many as fill the device, if each has two blocks of keys or more.
int num_parts(int64_t blocks, const std::vector<KeyBlocks>& keys) {
  int most = 1;
  for (const KeyBlocks& of_block : keys) most = std::max(most, (of_block.end - of_block.begin) / 2);
  const int64_t at_once = int64_t{2} * num_multiprocessors();
  return static_cast<int>(std::min<int64_t>(most, (at_once + blocks - 1) / blocks));
}

template <typename T, typename Tiles>
Prepared prepare(const NodeSpec& spec) {
  const PreparedAttention a(spec, Tiles::kQueries, Tiles::kKeys);
  const PreparedMatrices y(spec, AttentionTensor::kY);
  const int64_t rows = a.shape.heads() * a.shape.q.rows, elements = rows * a.shape.v.width,
                blocks = a.shape.heads() * std::ssize(a.key_blocks);
  const int parts = num_parts(blocks, a.key_blocks);
  Workspace workspace;
  const auto reserve = [&](int64_t of_part) {
    return workspace.reserve(parts > 1 ? static_cast<size_t>(parts * of_part) * sizeof(T) : 0);
  };
  const OperandPlace highest = reserve(rows), sum = reserve(rows), products = reserve(elements);
  const auto run = [=](const Launch& launch) {
    const auto at = [&](const OperandPlace& place) { return static_cast<T*>(address(place, launch)); };
    const AttentionProblem<T> p = a.on<T>(launch);
    const AttentionParts<T> of{parts, at(highest), at(sum), at(products)};
    enqueue(launch, "BlockAttention", attend<T, Tiles>, static_cast<unsigned>(blocks * parts), Tiles::kThreads,
            Tiles::kElements * sizeof(T), p, of, y.on<T>(launch), launch.out<T>(1), launch.out<T>(2));
    if (parts > 1) {
      enqueue_each(launch, "BlockAttention", merge_parts<T>, elements, p, of, y.on<T>(launch), launch.out<T>(1),
                   launch.out<T>(2));
    }
  };
  return {run, workspace.bytes()};
}

// Calls f(T{}, tiles) for the node; returns false if there are no tiles.
template <typename F>
bool dispatch_forward(const NodeSpec& spec, DType computed, const F& f) {
  const AttentionOperands a = attention_operands(spec);
  return dispatch_float(computed, [&]<typename T>(T t) {
    return dispatch_forward_tiles<T>(std::max(a.q.width, a.v.width), [&](auto tiles) { return f(t, tiles); });
  });
}

}  // namespace

bool has_forward_tiles(const NodeSpec& spec, DType computed) {
  return dispatch_forward(spec, computed, []<typename T, typename Tiles>(T, Tiles) {
    return Tiles::kElements * sizeof(T) <= most_shared_bytes();
  });
}

Prepared prepare_forward_attention(const NodeSpec& spec, DType computed) {
  Prepared prepared;
  dispatch_forward(spec, computed, [&]<typename T, typename Tiles>(T, Tiles) {
    prepared = prepare<T, Tiles>(spec);
    return true;
  });
  return prepared;
}

}  // namespace onnx_train::cuda
