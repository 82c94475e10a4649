// Attention of com.microsoft; of caches of keys and values, that of GroupQueryAttention alone. B: batch, N: heads, S:
// queries, T: keys, P: places of a cache, H: the size of a head.
#include <cmath>
#include <limits>

#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr const char* kCache =
    "it reads a cache of keys and values, which is no part of training; export the model without past";

// [B, S, N H] -> [B, N, S, H]
Var split_heads(Var x, int64_t heads) { return transpose(reshape(x, {0, 0, heads, -1}), {0, 2, 1, 3}); }
// [B, N, S, H] -> [B, S, N H]
Var merge_heads(Var y) { return reshape(transpose(y, {0, 2, 1, 3}), {0, 0, -1}); }

// H of x [B, N, S, H].
Dim size_of_heads(Var x) {
  if (x.rank() != 4) fail("heads are ", to_string(x.type()), ", not [batch, heads, positions, size]");
  return x.type().dims->back();
}

// 0, 1, ..., count - 1 for count [1].
Var numbers_below(Var count) {
  Builder& b = count.builder();
  return b.op("Range", {b.scalar(DType::kInt64, 0), squeeze(count, {0}), b.scalar(DType::kInt64, 1)});
}

// What is added to scores: 0 where `keep`, else `otherwise`.
Var as_scores(Var keep, DType dtype, double otherwise) {
  Builder& b = keep.builder();
  return where(keep, b.scalar(dtype, 0), b.scalar(dtype, otherwise));
}

// Hides keys after the query, and those `window` or more before it unless that is negative: [S, T], or [B, 1, S, T] if
// `before`[B] keys come before the first query. `q` and `k` are [B, N, S or T, H].
Var causal_mask(Var q, Var k, int64_t window, Var before = {}) {
  Var rows = unsqueeze(numbers_below(dim(q, 2)), {1});
  const Var columns = unsqueeze(numbers_below(dim(k, 2)), {0});
  if (before) rows = rows + unsqueeze(before, {1, 2, 3});
  Var keep = columns <= rows;
  if (window >= 0) keep = logical_and(keep, columns > rows - static_cast<double>(window));
  return as_scores(keep, q.dtype(), static_cast<double>(std::numeric_limits<float>::lowest()));
}

// A mask of keys as what is added to scores [B, N, S, T]: [B, T] and [B, S, T] keep what is above 0, [B] the first
// keys.
Var padding_mask(const Foreign& f, int i, Var k, double otherwise) {
  const int64_t rank = f.rank(i);
  const Var mask = f.x(i);
  if (rank == 2 || rank == 3) {
    const Var keep = mask > 0.0;
    return as_scores(unsqueeze(keep, rank == 2 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1}), k.dtype(),
                     otherwise);
  }
  size_of_heads(k);
  const Dim batch = k.type().dims->front(), given = rank == 1 ? mask.type().dims->front() : Dim();
  const bool by_length = !(batch.known() && given.known()) || batch.value() == given.value();
  if (rank != 1 || !by_length)
    f.refuse(concat("its mask '", mask.value()->name(), "' is ", to_string(mask.type()),
                    "; masks are [batch], [batch, keys] or [batch, queries, keys] here: export it so"));
  const Var at = unsqueeze(numbers_below(dim(k, 2)), {0}), keep = at < unsqueeze(cast(mask, DType::kInt64), {1});
  return as_scores(unsqueeze(keep, {1, 2}), k.dtype(), otherwise);
}

// softmax(scale q kᵀ + masks) v
struct Scores {
  float scale = 0;  // 0: 1 / √H
  float softcap = 0;
  std::vector<Var> added = {};
};
Var attend(const Foreign& f, Var q, Var k, Var v, const Scores& how) {
  double scale = how.scale;
  if (scale == 0) {
    const Dim head = size_of_heads(q);
    if (!head.known()) f.refuse("the size of its heads is not known; give the sizes of its inputs in the file");
    scale = 1 / std::sqrt(static_cast<double>(head.value()));
  }
  Var scores = matmul(q, transpose_last(k)) * scale;
  if (how.softcap > 0) scores = tanh(scores / static_cast<double>(how.softcap)) * static_cast<double>(how.softcap);
  for (const Var& mask : how.added) scores = plus(scores, mask);
  return merge_heads(matmul(f.b().op("Softmax", {scores}, {{"axis", -1}}), v));
}

int64_t heads_of(const Foreign& f, const char* attribute) {
  const int64_t heads = f.node().attr(attribute, 0);
  constexpr int64_t kMost = 1 << 20;
  if (heads < 1 || heads > kMost)
    f.refuse(concat("its attribute '", attribute, "' is ", heads, "; export the model again"));
  return heads;
}

std::vector<Var> split_last(const Foreign& f, Var x, const std::vector<int64_t>& sizes) {
  return f.b().ops("Split", static_cast<int>(sizes.size()), {x, f.b().ints(sizes)}, {{"axis", -1}});
}

// q, k, v = split(x W + b); outputs y and, for a cache, k and v together.
Results attention(Foreign& f) {
  f.expect_absent(4, kCache);
  if (f.node().attr("do_rotary", 0) != 0) f.refuse("it rotates its queries; export with RotaryEmbedding nodes instead");
  const int64_t heads = heads_of(f, "num_heads"), all = f.size(1, 1);
  f.rank(0);
  const std::vector<int64_t> sizes = f.node().attr("qkv_hidden_sizes", std::vector<int64_t>(3, all / 3));
  if (sizes.size() != 3) f.refuse("its attribute 'qkv_hidden_sizes' has not three numbers; export the model again");
  const std::vector<Var> parts = split_last(f, plus(matmul(f.x(0), f.x(1)), f.maybe(2)), sizes);
  const Var q = split_heads(parts[0], heads), k = split_heads(parts[1], heads), v = split_heads(parts[2], heads);
  Scores how{f.node().attr("scale", 0.0f)};
  if (f.node().attr("unidirectional", 0) != 0) how.added.push_back(causal_mask(q, k, -1));
  if (f.has(3))
    how.added.push_back(padding_mask(f, 3, k, static_cast<double>(f.node().attr("mask_filter_value", -10000.0f))));
  how.added.push_back(f.maybe(5));
  const Var present = f.wants(1) ? concat({unsqueeze(k, {0}), unsqueeze(v, {0})}, int64_t{0}) : Var();
  return f.to({attend(f, q, k, v, how), present});
}

// Part `i` of x [B, T, N, parts, H] as [B, N, T, H].
Var packed_part(Var x, int64_t i) { return transpose(squeeze(slice(x, i, i + 1, 3), {3}), {0, 2, 1, 3}); }

Results multi_head_attention(Foreign& f) {
  for (int i : {6, 7}) f.expect_absent(i, kCache);
  const int64_t heads = heads_of(f, "num_heads");
  Var q, k, v;
  if (f.rank(0) == 5) {
    q = packed_part(f.x(0), 0), k = packed_part(f.x(0), 1), v = packed_part(f.x(0), 2);
    f.expect_absent(3, "it has packed inputs and a bias; export the bias as an Add before it");
  } else {
    std::vector<Var> biases(3);
    if (f.has(3)) {
      const int64_t of_q = f.size(0, -1), of_v = f.size(3, 0) - 2 * of_q;
      biases = split_last(f, f.x(3), {of_q, of_q, of_v});
    }
    q = split_heads(plus(f.x(0), biases[0]), heads);
    const auto heads_in = [&](int i) {
      const Var x = f.x(i), bias = biases[static_cast<size_t>(i)];
      if (f.rank(i) == 3) return split_heads(plus(x, bias), heads);
      return bias ? x + unsqueeze(reshape(bias, {heads, -1}), {1}) : x;  // [B, N, T, H]
    };
    if (f.rank(1) == 5) {
      f.expect_absent(3, "it has packed inputs and a bias; export the bias as an Add before it");
      k = packed_part(f.x(1), 0), v = packed_part(f.x(1), 1);
    } else {
      k = heads_in(1), v = heads_in(2);
    }
  }
  Scores how{f.node().attr("scale", 0.0f)};
  if (f.node().attr("unidirectional", 0) != 0) how.added.push_back(causal_mask(q, k, -1));
  if (f.has(4))
    how.added.push_back(padding_mask(f, 4, k, static_cast<double>(f.node().attr("mask_filter_value", -10000.0f))));
  how.added.push_back(f.maybe(5));
  return f.to({attend(f, q, k, v, how), k, v});
}

// The first `size` elements of each head x [B, N, S, H] turned by angles, of which cosines and sines are [B or 1, S,
// size / 2]; the halves of a pair stand beside each other, or half a head apart.
Var rotate(Var x, Var cosines, Var sines, int64_t size, bool interleaved) {
  Builder& b = x.builder();
  const Dim head = size_of_heads(x);
  const bool whole = head.known() && head.value() == size;
  const Var turned = whole ? x : slice(x, 0, size, 3);
  const auto every_second = [&](int64_t from) {
    return slice(turned, b.ints({from}), b.ints({size}), b.ints({3}), b.ints({2}));
  };
  const Var first = interleaved ? every_second(0) : slice(turned, 0, size / 2, 3);
  const Var second = interleaved ? every_second(1) : slice(turned, size / 2, size, 3);
  const Var c = unsqueeze(cosines, {1}), s = unsqueeze(sines, {1});
  const Var first_c = first * c, real = first_c - second * s;
  const Var first_s = first * s, imaginary = first_s + second * c;
  Var y = concat({real, imaginary}, int64_t{3});
  if (interleaved) y = reshape(concat({unsqueeze(real, {4}), unsqueeze(imaginary, {4})}, int64_t{4}), {0, 0, 0, size});
  return whole ? y : concat({y, slice(x, size, std::numeric_limits<int64_t>::max(), 3)}, int64_t{3});
}

// Rows of a table of angles [positions, size / 2]: at 0, 1, .. for each of x [B, N, S, H] if `positions` is absent,
// from positions[0] on if it has one number, else at each.
Var angles_at(Var table, Var x, Var positions) {
  if (positions && positions.rank() == 2) return gather(table, positions, 0);
  Var at = numbers_below(dim(x, 2));
  if (positions) at = at + reshape(cast(positions, DType::kInt64), std::vector<int64_t>{1});
  return unsqueeze(gather(table, at, 0), {0});
}

Results rotary_embedding(Foreign& f) {
  if (f.node().attr("is_packed_batching", 0) != 0) f.refuse("its batch is packed; export the model with padding");
  const float scale = f.node().attr("scale", 1.0f);
  if (scale != 1) f.refuse(concat("its scale is ", scale, ", not 1; export the model with a scaled table of angles"));
  f.rank(1);
  const int64_t size = 2 * f.size(2, 1);
  const bool flat = f.rank(0) == 3;
  const int64_t heads = f.node().attr("num_heads", 0);
  const Var x = !flat ? f.x(0) : split_heads(f.x(0), heads > 0 ? heads : f.size(0, 2) / size);
  const Var cosines = angles_at(f.table(2), x, f.x(1)), sines = angles_at(f.table(3), x, f.x(1));
  const Var y = rotate(x, cosines, sines, size, f.node().attr("interleaved", 0) != 0);
  return f.to(flat ? merge_heads(y) : y);
}

// Each of the heads [B, N', T, H] stands for `copies` of them: [B, N' copies, T, H].
Var repeat_heads(Var x, int64_t heads, int64_t copies) {
  if (copies == 1) return x;
  Builder& b = x.builder();
  const Var many = expand(unsqueeze(x, {2}), b.ints({1, 1, copies, 1, 1}));
  const Var sizes = concat({dim(x, 0), b.ints({heads * copies}), dim(x, 2), dim(x, 3)}, int64_t{0});
  return reshape(many, sizes);
}

// How many keys of a cache [B, N, P, H] come before the S queries, [B]: `lengths` are those of all keys less 1.
Var keys_before(Var lengths, Var cache, Var queries) {
  Builder& b = lengths.builder();
  const Var given = reshape(cast(lengths, DType::kInt64), std::vector<int64_t>{-1}) + 1.0 - queries;
  return b.op("Min", {b.op("Max", {given, b.scalar(DType::kInt64, 0)}), dim(cache, 2)});
}

// The first `before`[B] of the cache [B, N, P, H], then x [B, N, S, H], then what is left of the cache.
Var append_to_cache(Var cache, Var x, Var before) {
  Builder& b = x.builder();
  const Var places = dim(cache, 2), all = concat({cache, x}, int64_t{2});
  const Var at = unsqueeze(numbers_below(dim(all, 2)), {0}), start = unsqueeze(before, {1});  // [1, P + S], [B, 1]
  const Var of_x = at - start + places, after = of_x < squeeze(dim(all, 2), {0});
  const Var is_before = at < start, from = where(is_before, at, where(after, of_x, at - dim(x, 2)));
  return b.op("GatherElements", {all, expand_like(unsqueeze(from, {1, 3}), all)}, {{"axis", 2}});
}

// Queries are all tokens of a prompt, or those that follow the keys and values of a cache. Lengths of prompts need no
// mask, because padding comes after a prompt and no query reads a later key.
Results group_query_attention(Foreign& f) {
  f.expect_absent(11, "it has a sink of its softmax; export the model without this fusion");
  for (int i : {12, 13}) f.expect_absent(i, kCache);
  for (int i : {14, 15}) f.expect_absent(i, "it normalizes queries; export the model without this fusion");
  if (f.node().attr("smooth_softmax", 0) > 0) f.refuse("its softmax is smooth; export the model without this fusion");
  const int64_t heads = heads_of(f, "num_heads"), key_heads = heads_of(f, "kv_num_heads");
  if (heads % key_heads != 0) f.refuse("kv_num_heads does not divide num_heads; export the model again");
  f.rank(0);
  std::vector<Var> parts = {f.x(0), f.maybe(1), f.maybe(2)};
  if (!f.has(1)) {
    const int64_t head = f.size(0, 2) / (heads + 2 * key_heads);
    parts = split_last(f, f.x(0), {heads * head, key_heads * head, key_heads * head});
  } else {
    for (int i : {1, 2}) f.rank(i);
  }
  Var q = split_heads(parts[0], heads), k = split_heads(parts[1], key_heads), v = split_heads(parts[2], key_heads);
  Var before, positions = f.maybe(9);
  if (f.has(3)) {
    for (int i : {3, 4, 5}) f.rank(i);
    before = keys_before(f.x(5), f.x(3), dim(q, 2));
    if (!positions) {
      const Var first = unsqueeze(before, {1});
      positions = first + unsqueeze(numbers_below(dim(q, 2)), {0});
    }
  }
  if (f.node().attr("do_rotary", 0) != 0) {
    const int64_t size = 2 * f.size(7, 1);
    const bool interleaved = f.node().attr("rotary_interleaved", 0) != 0;
    if (f.has(9)) f.rank(9);
    const Var cosines = f.table(7), sines = f.table(8);
    const auto turned = [&](Var x) {
      const Var c = angles_at(cosines, x, positions), s = angles_at(sines, x, positions);
      return rotate(x, c, s, size, interleaved);
    };
    q = turned(q), k = turned(k);
  }
  if (before) k = append_to_cache(f.x(3), k, before), v = append_to_cache(f.x(4), v, before);
  Scores how{f.node().attr("scale", 0.0f), f.node().attr("softcap", 0.0f)};
  const int64_t copies = heads / key_heads;
  if (before && f.node().attr("causal", 1) == 0) f.refuse("it reads a cache without a causal mask; export it with one");
  if (f.node().attr("causal", 1) != 0)
    how.added.push_back(causal_mask(q, k, f.node().attr("local_window_size", -1), before));
  how.added.push_back(f.maybe(10));
  const Var keys = repeat_heads(k, key_heads, copies), values = repeat_heads(v, key_heads, copies);
  const Var y = attend(f, q, keys, values, how);
  return f.to({y, k, v});
}

}  // namespace

std::vector<ForeignRow> attention_foreign() {
  return {
      {"Attention", attention},
      {"MultiHeadAttention", multi_head_attention},
      {"GroupQueryAttention", group_query_attention},
      {"RotaryEmbedding", rotary_embedding},
      {"DecoderMaskedMultiHeadAttention", nullptr, "com.microsoft", kCache},
      {"DecoderMaskedSelfAttention", nullptr, "com.microsoft", kCache},
  };
}

}  // namespace onnx_train
