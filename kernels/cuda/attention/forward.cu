// Prepares BlockAttention by our kernels.
#include "kernels/cuda/attention/attend.h"
#include "kernels/cuda/attention/prepared_attention.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/place.h"

namespace onnx_train::cuda {
namespace {

using FloatTiles =
    std::tuple<AttentionTiles<64, 64, 64, 3>, AttentionTiles<128, 64, 32, 2>, AttentionTiles<256, 32, 16, 2>>;
using TensorCoreTiles = std::tuple<AttentionTiles<64, 128, 32, 3, TensorCoreGrid<32, 4>>,
                                   AttentionTiles<128, 128, 32, 2, TensorCoreGrid<32, 4>>>;
using DoubleTiles = std::tuple<AttentionTiles<64, 32, 32>, AttentionTiles<128, 32, 16>>;

// The parts of a result: as many as the device runs at once, if each has two blocks of keys or more.
int num_parts(int64_t blocks, int64_t blocks_at_once, const std::vector<KeyBlocks>& keys) {
  int64_t most = 1;
  for (const KeyBlocks& of_block : keys) most = std::max<int64_t>(most, (of_block.end - of_block.begin) / 2);
  return static_cast<int>(std::clamp<int64_t>(blocks_at_once / blocks, 1, most));
}

template <typename T, typename Tiles>
Prepared prepare(const NodeSpec& spec) {
  const PreparedAttention a(spec, Tiles::kQueries, Tiles::kKeys);
  const PreparedMatrices y(spec, AttentionTensor::kY);
  const int64_t rows = a.shape.heads() * a.shape.q.rows, elements = rows * a.shape.v.width,
                blocks = a.shape.heads() * std::ssize(a.key_blocks);
  const int parts = num_parts(blocks, int64_t{Tiles::kBlocks} * num_multiprocessors(), a.key_blocks);
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
  return {.run = run, .workspace = workspace.bytes(), .form = Tiles::Threads::kOnTensorCores ? "TF32" : ""};
}

}  // namespace

bool has_forward_tiles(const NodeSpec& spec, DType computed) {
  return dispatch_tiles<DoubleTiles, FloatTiles, TensorCoreTiles>(spec, computed, [](auto, auto) {});
}

Prepared prepare_forward_attention(const NodeSpec& spec, DType computed) {
  Prepared prepared;
  dispatch_tiles<DoubleTiles, FloatTiles, TensorCoreTiles>(
      spec, computed, [&]<typename T, typename Tiles>(T, Tiles) { prepared = prepare<T, Tiles>(spec); });
  return prepared;
}

}  // namespace onnx_train::cuda
