// The kernels of sorted rows (sorted_rows.h). A pack is `kWidth` neighbouring elements of a row. Columns of packs are
// numbered through all parts: column c belongs to part c / packs of a row.
#pragma once

#include <iterator>

#include "kernels/cuda/movement/sorted_rows.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/pack.h"
#include "kernels/math/binary.h"

namespace onnx_train::cuda {

// Merges two results of the same row, the earlier first, and combines the result with the row. In kMax and kMin a NaN
// among the updates loses against other numbers, as if each update were compared with the row in order.
template <typename T>
struct AnyReduction {
  Reduction reduction;
  __device__ T merge(T a, T b) const {
    switch (reduction) {
      case Reduction::kAdd: return math::Add()(a, b);
      case Reduction::kMul: return math::Mul()(a, b);
      case Reduction::kMax: return a < b || a != a ? b : a;
      default: return b < a || a != a ? b : a;
    }
  }
  __device__ T combine(T row, T update) const {
    switch (reduction) {
      case Reduction::kAdd: return math::Add()(row, update);
      case Reduction::kMul: return math::Mul()(row, update);
      case Reduction::kMax: return row < update ? update : row;
      default: return update < row ? update : row;
    }
  }
};

template <typename T>
struct AddRows {
  __device__ T merge(T a, T b) const { return a + b; }
  __device__ T combine(T row, T update) const { return row + update; }
};

// Adds to the row that the key gives.
template <typename T, int kWidth, typename Op>
struct KeyedRows {
  using Element = T;
  using Pack = cuda::Pack<T, kWidth>;
  Op op;
  Pack* to;
  int64_t part;   // packs in a part of `to`
  bool is_clear;  // `to` holds zeros, which need not be read

  __device__ void finish(int64_t outer, int64_t pack, int64_t packs, int64_t key, int64_t, const Pack& update) const {
    Pack& row = to[outer * part + key * packs + pack];
    Pack result = {};
    if (!is_clear) result = row;
    for (int i = 0; i < kWidth; ++i) result.at[i] = op.combine(result.at[i], update.at[i]);
    row = result;
  }
  __device__ void repeat(int64_t, int64_t, int64_t) const {}
};

// Stores the sum at the key's first position, and zeros at its other positions.
template <typename T, int kWidth, typename Op>
struct FirstRows {
  using Element = T;
  using Pack = cuda::Pack<T, kWidth>;
  Op op;
  Pack* to;

  __device__ void finish(int64_t, int64_t pack, int64_t packs, int64_t, int64_t first, const Pack& sum) const {
    Pack result = sum;
    for (int i = 0; i < kWidth; ++i) result.at[i] += T{0};  // a sum of zeros is +0, as in a dense gradient
    to[first * packs + pack] = result;
  }
  __device__ void repeat(int64_t pack, int64_t packs, int64_t place) const { to[place * packs + pack] = Pack{}; }
};

// Tile t has two partial results per column c: partials[2 t columns + c] for the run of equal keys that starts before
// the tile, partials[(2 t + 1) columns + c] for the one that starts in it and ends after it.
template <typename Pack>
struct Tiles {
  int64_t count, tile, threads;  // threads: tiles times columns
  Divider columns, packs;        // packs of a row in all parts, in one part
  const uint64_t* keys;
  const int64_t* places;
  Pack* partials;
};

struct TileThread {
  int64_t tile, column, outer, pack, first, last;
  template <typename Pack>
  __device__ TileThread(const Tiles<Pack>& tiles, int64_t i)
      : tile(tiles.columns.quotient(i)),
        column(i - tile * tiles.columns.divisor()),
        outer(tiles.packs.quotient(column)),
        pack(column - outer * tiles.packs.divisor()),
        first(tile * tiles.tile),
        last(first + tiles.tile) {
    if (last > tiles.count) last = tiles.count;
  }
};

inline constexpr int kAhead = 8;  // rows, or partial results, that a thread loads before it combines them

// One thread per tile and column.
template <typename Rows>
__global__ void combine_tiles(Tiles<typename Rows::Pack> tiles, Rows rows, const Fault* guard,
                              const typename Rows::Pack* from) {
  using Pack = typename Rows::Pack;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= tiles.threads || stops(guard)) return;
  const TileThread at(tiles, i);
  const int64_t packs = tiles.packs.divisor(), columns = tiles.columns.divisor();
  const Pack* const column = from + at.outer * tiles.count * packs + at.pack;
  uint64_t key = tiles.keys[at.first];
  bool began_before = at.first > 0 && tiles.keys[at.first - 1] == key, is_empty = true;
  int64_t first_place = 0;
  Pack sum = {};
  const auto finish = [&] {
    if (began_before) {
      tiles.partials[2 * at.tile * columns + at.column] = sum;
    } else {
      rows.finish(at.outer, at.pack, packs, static_cast<int64_t>(key), first_place, sum);
    }
  };
  for (int64_t first = at.first; first < at.last; first += kAhead) {
    uint64_t next_keys[kAhead];
    int64_t next_places[kAhead];
    Pack next[kAhead];
    for (int k = 0; k < kAhead; ++k) {
      if (first + k >= at.last) break;
      next_keys[k] = tiles.keys[first + k];
      next_places[k] = tiles.places[first + k];
      next[k] = column[next_places[k] * packs];
    }
    for (int k = 0; k < kAhead; ++k) {
      if (first + k >= at.last) break;
      if (!is_empty && next_keys[k] != key) {
        finish();
        key = next_keys[k];
        is_empty = true;
        began_before = false;
      }
      if (is_empty) {
        sum = next[k];
        first_place = next_places[k];
      } else {
        for (int e = 0; e < static_cast<int>(std::size(sum.at)); ++e) {
          sum.at[e] = rows.op.merge(sum.at[e], next[k].at[e]);
        }
      }
      if (!is_empty || began_before) rows.repeat(at.pack, packs, next_places[k]);
      is_empty = false;
    }
  }
  if (at.last < tiles.count && tiles.keys[at.last] == key) {
    tiles.partials[(2 * at.tile + (began_before ? 0 : 1)) * columns + at.column] = sum;
  } else {
    finish();
  }
}

// Joins the partial results of runs that start in a tile and end after it. One thread per tile and column. A run may
// go through all tiles (the gradient of an embedding of few rows), so partial results are read ahead of their use.
template <typename Rows>
__global__ void join_tiles(Tiles<typename Rows::Pack> tiles, Rows rows, const Fault* guard) {
  using Pack = typename Rows::Pack;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= tiles.threads || stops(guard)) return;
  const TileThread at(tiles, i);
  const int64_t packs = tiles.packs.divisor(), columns = tiles.columns.divisor();
  if (at.last >= tiles.count) return;
  const uint64_t key = tiles.keys[at.last - 1];
  if (tiles.keys[at.last] != key || (at.first > 0 && tiles.keys[at.first - 1] == key)) return;
  Pack sum = tiles.partials[(2 * at.tile + 1) * columns + at.column];
  bool goes_on = true;  // whether the next tile begins with a row of this run
  for (int64_t tile = at.tile + 1; goes_on; tile += kAhead) {
    Pack next[kAhead];
    bool goes_on_after[kAhead];
    for (int k = 0; k < kAhead; ++k) {
      const int64_t end = (tile + k + 1) * tiles.tile;
      if (end - tiles.tile >= tiles.count) break;
      next[k] = tiles.partials[2 * (tile + k) * columns + at.column];
      goes_on_after[k] = end < tiles.count && tiles.keys[end] == key;
    }
    for (int k = 0; k < kAhead && goes_on; ++k) {
      for (int e = 0; e < static_cast<int>(std::size(sum.at)); ++e) {
        sum.at[e] = rows.op.merge(sum.at[e], next[k].at[e]);
      }
      goes_on = goes_on_after[k];
    }
  }
  int64_t first = at.last - 1;
  while (first > at.first && tiles.keys[first - 1] == key) --first;
  rows.finish(at.outer, at.pack, packs, static_cast<int64_t>(key), tiles.places[first], sum);
}

// Returns the rows per tile: enough tiles for a large device, but no more partial results than needed. It is not asked
// of the device, since tiles decide in which order rows are added.
inline int64_t tile_of(const RowScatter& rows, int64_t packs) {
  constexpr int64_t kManyThreads = 1 << 17;
  return std::clamp<int64_t>(rows.count * packs / kManyThreads, 8, 64);
}

// Number of packs of all partial results, with `packs` packs per row.
inline int64_t num_partials(const RowScatter& rows, int64_t packs) {
  const int64_t tile = tile_of(rows, packs);
  return 2 * ((rows.count + tile - 1) / tile) * rows.outer * packs;
}

template <typename Rows>
void enqueue_tiles(const Launch& launch, const RowScatter& rows, const Sort::Result& sorted, const Rows& to,
                   const void* from, void* partials, const Fault* guard) {
  using Pack = typename Rows::Pack;
  const int64_t packs = rows.inner * static_cast<int64_t>(sizeof(typename Rows::Element)) / int64_t{sizeof(Pack)};
  const int64_t columns = rows.outer * packs, tile = tile_of(rows, packs), n = (rows.count + tile - 1) / tile;
  if (columns * n == 0) return;
  const Tiles<Pack> tiles{rows.count,     tile,        n * columns,   Divider(columns),
                          Divider(packs), sorted.keys, sorted.places, static_cast<Pack*>(partials)};
  enqueue(launch, "combine_tiles", combine_tiles<Rows>, blocks_for(tiles.threads), kThreads, 0, tiles, to, guard,
          static_cast<const Pack*>(from));
  enqueue(launch, "join_tiles", join_tiles<Rows>, blocks_for(tiles.threads), kThreads, 0, tiles, to, guard);
}

}  // namespace onnx_train::cuda
