// Prepares BlockAttentionGrad by our kernels.
#include "kernels/cuda/attention/attend_gradient.h"
#include "kernels/cuda/attention/prepared_attention.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/place.h"

namespace onnx_train::cuda {
namespace {

// Those for rows of 128 need the shared memory of a GPU for data centres, or are smaller.
using FloatGradientTiles =
    std::tuple<AttentionGradientTiles<64, 32, 64, 8, 3>, AttentionGradientTiles<128, 64, 64, 16>,
               AttentionGradientTiles<128, 32, 32, 8, 2>, AttentionGradientTiles<256, 16, 32, 8, 2>>;
// The second ones for rows of 64 fit into the shared memory of other GPUs than those for data centres.
using TensorCoreTiles = std::tuple<TensorCoreGradientTiles<64, 32, 128, 2>, TensorCoreGradientTiles<64, 32, 64, 2>,
                                   TensorCoreGradientTiles<128, 32, 64, 2>>;
using DoubleGradientTiles = std::tuple<AttentionGradientTiles<64, 32, 32>, AttentionGradientTiles<128, 16, 32>>;

template <typename T, typename Tiles>
Prepared prepare_gradient(const NodeSpec& spec) {
  using enum AttentionTensor;
  const PreparedAttention a(spec, Tiles::kQueries, Tiles::kKeys);
  const PreparedMatrices dy(spec, kDy), y(spec, kY), dq(spec, kDq), dk(spec, kDk), dv(spec, kDv);
  const int64_t heads = a.shape.heads(), rows = heads * a.shape.q.rows, query_blocks = std::ssize(a.key_blocks),
                key_blocks = (a.shape.k.rows + Tiles::kKeys - 1) / Tiles::kKeys;
  const SharedTable queries = on_device(onnx_train::query_blocks(a.key_blocks, key_blocks));
  Workspace workspace;
  const auto reserve = [&](int64_t elements) { return workspace.reserve(static_cast<size_t>(elements) * sizeof(T)); };
  // The sums of dq need rows of whole fours in T.
  const bool has_sums = dq.stored != dtype_of<T>() || !dq.in_fours;
  const int64_t fours = (a.shape.q.width + 3) / 4;
  std::vector<int64_t> starts;
  for (int64_t head = 0; has_sums && head < heads; ++head) starts.push_back(head * a.shape.q.rows * fours * 4);
  const SharedTable sum_starts = has_sums ? on_device(starts) : nullptr;
  const size_t counters = static_cast<size_t>(heads * query_blocks + 1) * sizeof(int);
  const OperandPlace mean = reserve(rows), inverse = reserve(rows), sums = reserve(has_sums ? rows * fours * 4 : 0),
                     counted = workspace.reserve(counters);
  const auto run = [=](const Launch& launch) {
    const auto at = [&](const OperandPlace& place) { return static_cast<T*>(address(place, launch)); };
    auto* const counter = static_cast<int*>(address(counted, launch));
    const AttentionProblem<T> p = a.on<T>(launch);
    Matrices<T> dq_sums = dq.on<T>(launch);
    if (has_sums) dq_sums = {at(sums), sum_starts->data<int64_t>(), fours * 4, dtype_of<T>(), true};
    const AttentionGradient<T> g{dy.on<T>(launch),
                                 y.on<T>(launch),
                                 dk.on<T>(launch),
                                 dv.on<T>(launch),
                                 dq_sums,
                                 launch.in<T>(5),
                                 launch.in<T>(6),
                                 at(mean),
                                 at(inverse),
                                 queries->data<BlockRange>(),
                                 static_cast<int>(query_blocks),
                                 counter,
                                 counter + 1};
    set_bytes(launch, counter, 0, counters);
    enqueue(launch, "BlockAttentionGrad", prepare_rows<T>, blocks_for(rows * kRowLanes), kThreads, 0, rows, p, g);
    enqueue(launch, "BlockAttentionGrad", attend_gradient<T, Tiles>, static_cast<unsigned>(heads * key_blocks),
            Tiles::kThreads, Tiles::kElements * sizeof(T), p, g);
    if (has_sums) {
      enqueue_each(launch, "BlockAttentionGrad", store_sums<T>, rows * fours, p.queries, p.width, dq_sums,
                   dq.on<T>(launch));
    }
  };
  return {.run = run, .workspace = workspace.bytes(), .form = Tiles::Threads::kOnTensorCores ? "TF32" : ""};
}

}  // namespace

bool has_backward_tiles(const NodeSpec& spec, DType computed) {
  return dispatch_tiles<DoubleGradientTiles, FloatGradientTiles, TensorCoreTiles>(spec, computed, [](auto, auto) {});
}

Prepared prepare_backward_attention(const NodeSpec& spec, DType computed) {
  Prepared prepared;
  dispatch_tiles<DoubleGradientTiles, FloatGradientTiles, TensorCoreTiles>(
      spec, computed, [&]<typename T, typename Tiles>(T, Tiles) { prepared = prepare_gradient<T, Tiles>(spec); });
  return prepared;
}

}  // namespace onnx_train::cuda
