// What attention's kernels, forward and backward, share: where its operands lie, how queries and keys are cut into
// blocks, and products on those blocks.
//
// A tile is a block of queries against a block of keys. Only the tiles of one block of queries are in memory at a time,
// for each thread; those that the mask leaves empty are skipped (attention_mask.h).
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/kernel.h"

namespace onnx_train::cpu {

// A matrix of rows x width for each element of the batch, somewhere in a tensor. The numbers of a row lie together.
struct Heads {
  Shape batch;
  std::vector<int64_t> starts;
  int64_t rows = 0, width = 0, row_stride = 0;
  bool in_rows = false;  // whether they do
};

// One axis cut into pieces of `size`; the last may be shorter.
struct Blocks {
  int64_t total = 0, size = 1;

  int64_t count() const { return (total + size - 1) / size; }
  int64_t begin(int64_t block) const { return block * size; }
  int64_t length(int64_t block) const { return std::min(size, total - begin(block)); }
  int64_t tail() const { return length(count() - 1); }
};

struct AttentionSpec {
  Heads q, k, v;
  float scale = 1;
  bool guarded = false;
  Blocks queries, keys;

  int64_t heads() const { return static_cast<int64_t>(q.starts.size()); }
};

// Inputs `first`, `first` + 1 and `first` + 2 of the node are q, k and v.
AttentionSpec attention_of(const NodeSpec& spec, int first);

// The matrices of input `i`, or of output `i`, whose axes `attribute` permutes (functions/attention.cc).
Heads heads_of_input(const NodeSpec& spec, int i, const char* attribute);
Heads heads_of_output(const NodeSpec& spec, int i, const char* attribute);

// Whether the kernels can run the node: float32 tensors without empty ones, their rows in one piece.
bool supports_attention(const NodeSpec& spec);
bool supports_attention_gradient(const NodeSpec& spec);

// One product for each size of a tile. `shape` tells the shape for a number of queries and one of keys. With
// `GemmShape::packed`, b depends on the keys only.
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
  // The most that any of them needs, in bytes, a whole number of cache lines.
  size_t scratch_bytes() const;
  size_t packed_bytes() const;

 private:
  Blocks queries_, keys_;
  std::vector<Gemm<float>> products_;
};

// Some rows of a matrix.
struct Rows {
  const float* begin;
  int64_t count, width, stride;
};

// The largest norm of the rows that scores are made of, for a bound that tells which blocks of scores a mask hides. NaN
// where a number of theirs, or of the rows `beside` them that take no part in scores, is not finite, or its square is
// not: under a bound that is NaN no block is hidden, and a NaN reaches whatever it would reach without blocks.
float largest_norm(const Rows& rows, const Rows& beside = {});

// The smallest whole number of cache lines that hold so many bytes.
inline size_t cache_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// The rows of BlockAttention and BlockAttentionGrad.
std::vector<Kernel> attention_kernels();

}  // namespace onnx_train::cpu
