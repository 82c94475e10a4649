// The common code of the attention kernels, forward and backward: the description of the operands, the blocks of
// queries and keys, and matrix products on those blocks.
//
// A tile is one block of queries times one block of keys. Each thread holds the tiles of one block of queries at a
// time; tiles that the mask hides entirely are skipped (attention_mask.h). Functions that read a NodeSpec run while a
// kernel is prepared and throw Error for shapes that do not fit.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cpu/products/gemm.h"
#include "kernels/geometry/attention.h"
#include "kernels/kernel.h"

namespace onnx_train::cpu {

// An axis cut into blocks of `size`; the last one may be shorter.
struct Blocks {
  int64_t total = 0, size = 1;

  int64_t count() const { return (total + size - 1) / size; }
  int64_t begin(int64_t block) const { return block * size; }
  int64_t length(int64_t block) const { return std::min(size, total - begin(block)); }
  int64_t tail() const { return length(count() - 1); }
};

struct AttentionSpec : AttentionOperands {
  Blocks queries, keys;
};

AttentionSpec attention_of(const NodeSpec& spec);

// One matrix product for each tile size: full blocks and shorter last blocks. `shape` gives the shape for a number of
// queries and of keys. With `GemmShape::packed`, b depends on the keys only.
class TileProducts {
 public:
  template <typename F>
  TileProducts(const Blocks& queries, const Blocks& keys, const F& shape) : queries_(queries), keys_(keys) {
    products_.reserve(4);
    for (const int64_t n : {keys.size, keys.tail()}) {
      products_.emplace_back(shape(queries.size, n));
      const GemmShape tail = shape(queries.tail(), n);
      products_.push_back(tail.packed ? products_.back().with_rows(queries.tail()) : Gemm<float>(tail));
    }
  }

  Gemm<float>& of(int64_t query_block, int64_t key_block) {
    return products_[(keys_.length(key_block) == keys_.size ? 0 : 2) +
                     (queries_.length(query_block) == queries_.size ? 0 : 1)];
  }
  // Bytes of scratch memory that the largest of the products needs, a multiple of the cache line.
  size_t scratch_bytes() const;
  size_t packed_bytes() const;

 private:
  Blocks queries_, keys_;
  std::vector<Gemm<float>> products_;
};

// A range of rows of a matrix.
struct Rows {
  const float* begin;
  int64_t count, width, stride;
};

// The largest norm of `rows`, which bounds their scores: |q·k| <= |q| |k|. Returns NaN when an element of `rows` or of
// `beside` (rows that do not enter scores, such as values) is not finite, or when a square overflows. Under a NaN bound
// no tile is skipped, so NaN propagates as without tiles.
float largest_norm(const Rows& rows, const Rows& beside = {});

// `bytes` rounded up to a multiple of the cache line.
inline size_t cache_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace onnx_train::cpu
