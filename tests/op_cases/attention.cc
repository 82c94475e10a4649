#include <limits>

#include "tests/op_cases/op_case.h"

namespace onnx_train {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const Shape kByHeads = {0, 2, 1, 3};  // [batch, tokens, heads, width] in memory

struct Sizes {
  int64_t batch = 2, heads = 2, queries = 5, keys = 7, width = 4, value_width = 4;
  Shape order = kByHeads;  // of the axes in memory: its own inverse
  bool packed = false;     // q, k and v in one tensor

  Shape operand(int64_t rows, int64_t columns, int64_t parts = 1) const {
    const Shape shape = {batch, parts * heads, rows, columns};
    Shape memory;
    for (const int64_t axis : order) memory.push_back(shape[static_cast<size_t>(axis)]);
    return memory;
  }
  std::vector<OpInput> queries_keys_and_values() const {
    if (packed) return {{operand(queries, width, 3)}, {.absent = true}, {.absent = true}};
    return {{operand(queries, width)}, {operand(keys, width)}, {operand(keys, value_width)}};
  }
};

struct Masking {
  OpInput mask = {.absent = true};
  float fill = 0;
  bool keeps_true = false, guarded = false;
  float hidden = -kInfinity;
};

// Queries see keys up to their own place, counted from the end where there are fewer of them.
template <typename F>
Tensor causal(DType dtype, int64_t queries, int64_t keys, const F& value) {
  Tensor mask(dtype, {queries, keys});
  for (int64_t i = 0; i < mask.size(); ++i) mask.set(i, value(i % keys <= i / keys + keys - queries));
  return mask;
}

OpInput added(const Sizes& s, float masked) {
  return {.value = causal(DType::kFloat, s.queries, s.keys, [=](bool seen) { return seen ? 0.0f : masked; })};
}

OpInput selecting(const Sizes& s, bool keeps_true) {
  return {.value = causal(DType::kBool, s.queries, s.keys, [=](bool seen) { return seen == keeps_true ? 1.0 : 0.0; })};
}

Attrs attributes(const Sizes& s, const Masking& m, const std::vector<const char*>& permutations) {
  Attrs attrs = {
      {"scale", 0.5f}, {"fill", m.fill}, {"keeps_true", m.keeps_true}, {"guarded", m.guarded}, {"hidden", m.hidden}};
  if (s.packed) attrs.push_back({"packed", 1});
  for (const char* name : permutations) attrs.push_back({name, s.order});
  return attrs;
}

OpCase forward(const Sizes& s, const Masking& m = {}) {
  OpCase row{.op = "BlockAttention",
             .inputs = s.queries_keys_and_values(),
             .attrs = attributes(s, m, {"perm_q", "perm_k", "perm_v", "perm_y"}),
             .num_outputs = 3,
             .domain = "onnx_train",
             .gradient = false,
             .dynamic = false};
  if (!m.mask.absent) row.inputs.push_back(m.mask);
  return row;
}

// Sums that are large enough for all probabilities to be below 1.
OpCase backward(const Sizes& s, const Masking& m = {}) {
  const Shape rows = {s.batch, s.heads, s.queries};
  const Shape y = s.operand(s.queries, s.value_width);
  OpCase row{
      .op = "BlockAttentionGrad",
      .inputs = {{y}},
      .attrs = attributes(s, m, {"perm_dy", "perm_q", "perm_k", "perm_v", "perm_y", "perm_dq", "perm_dk", "perm_dv"}),
      .num_outputs = s.packed ? 1 : 3,
      .domain = "onnx_train",
      .gradient = false,
      .dynamic = false};
  for (const OpInput& operand : s.queries_keys_and_values()) row.inputs.push_back(operand);
  row.inputs.insert(row.inputs.end(),
                    {{y}, {.shape = rows, .low = 0, .high = 1}, {.shape = rows, .low = 10, .high = 20}});
  if (!m.mask.absent) row.inputs.push_back(m.mask);
  return row;
}

void add_both(const Sizes& s, const Masking& m, std::vector<OpCase>* rows) {
  rows->push_back(forward(s, m));
  rows->push_back(backward(s, m));
}

// ---- ONNX's own operator, differentiated and run through the body that the standard gives it

// Of `queries` x `keys`: the second row and the last column hidden entirely.
OpInput hidden(int64_t queries, int64_t keys, bool boolean) {
  Tensor mask(boolean ? DType::kBool : DType::kFloat, {queries, keys});
  for (int64_t i = 0; i < mask.size(); ++i) {
    const bool seen = i / keys != 1 && i % keys != keys - 1;
    mask.set(i, boolean ? (seen ? 1.0 : 0.0) : seen ? 0.25 * static_cast<double>(i % 3) : -kInfinity);
  }
  OpInput input{.value = mask};
  if (!boolean) input.no_derivative = "-inf has no neighbours";
  return input;
}

// Queries of 4 heads, keys and values of `heads`: y alone, or, with a cache of earlier keys, all four outputs.
OpCase standard_attention(int64_t heads, OpInput mask, Attrs attrs, bool cached = false) {
  constexpr int64_t kQueries = 3, kKeys = 5, kPast = 2;
  OpCase row{.op = "Attention",
             .inputs = {{{2, 4, kQueries, 4}}, {{2, heads, kKeys, 4}}, {{2, heads, kKeys, 6}}, std::move(mask)},
             .attrs = std::move(attrs),
             .num_outputs = cached ? 4 : 1,
             .dynamic = false,
             .opset = 25};
  if (cached) row.inputs.insert(row.inputs.end(), {{{2, heads, kPast, 4}}, {{2, heads, kPast, 6}}});
  return row;
}

void standard_cases(std::vector<OpCase>* rows) {
  const OpInput none{.absent = true}, added{.shape = {3, 7}, .low = -2, .high = 2};
  for (const int64_t heads : {4, 2}) {
    for (const bool boolean : {true, false}) {
      for (const int causal : {0, 1}) {
        rows->push_back(standard_attention(heads, hidden(3, 5, boolean), {{"is_causal", causal}}));
        const Attrs probabilities = {{"is_causal", causal}, {"qk_matmul_output_mode", 3}, {"softcap", 0.7f}};
        rows->push_back(standard_attention(heads, hidden(3, 7, boolean), probabilities, true));
      }
    }
    // Scores with the mask are -inf where a key is hidden, which has no differences.
    for (const int mode : {0, 1, 2}) {
      for (const float softcap : {0.0f, 0.7f}) {
        const Attrs scores = {{"qk_matmul_output_mode", mode}, {"softcap", softcap}};
        rows->push_back(standard_attention(heads, added, scores, true));
        rows->push_back(standard_attention(heads, none, scores, true));
      }
      const Attrs causal = {{"qk_matmul_output_mode", mode}, {"is_causal", 1}, {"softcap", 0.7f}};
      if (mode < 2) rows->push_back(standard_attention(heads, hidden(3, 7, true), causal, true));
    }
  }
}

}  // namespace

std::vector<OpCase> attention_cases() {
  std::vector<OpCase> rows;
  standard_cases(&rows);
  const Sizes small, one{1, 1, 1, 1, 1, 1}, plain{.order = {0, 1, 2, 3}}, empty{.batch = 0};
  const Sizes wide{.queries = 9, .width = 3, .value_width = 6};
  // More than one block of queries and keys, the last ones not full.
  const Sizes blocks{1, 3, 150, 290, 8, 8}, square{1, 2, 384, 384, 16, 16};
  // Rows for which CUDA has larger tiles; the last ones fill neither their vectors nor, in float64, any tile.
  const Sizes of_128{1, 2, 70, 100, 128, 96}, of_200{1, 1, 40, 70, 200, 198};
  for (const Sizes& s : {small, one, plain, empty, wide, blocks, of_128, of_200}) add_both(s, {}, &rows);
  add_both(of_128, {.mask = added(of_128, -kInfinity)}, &rows);
  for (const Sizes& s : {small, blocks, square}) {
    for (const float masked : {-kInfinity, -1e9f, -2.0f}) add_both(s, {.mask = added(s, masked)}, &rows);
    for (const bool keeps_true : {true, false}) {
      add_both(s, {.mask = selecting(s, keeps_true), .fill = -kInfinity, .keeps_true = keeps_true}, &rows);
    }
    add_both(s, {.mask = selecting(s, true), .fill = -1e4f, .keeps_true = true, .guarded = true}, &rows);
  }
  // Queries, keys and values in one tensor, forward and backward.
  const Sizes packed{.queries = 5, .keys = 5, .packed = true};
  const Sizes packed_plain{.queries = 3, .keys = 3, .order = {0, 1, 2, 3}, .packed = true};
  const Sizes packed_blocks{2, 2, 150, 150, 8, 8, kByHeads, true}, packed_empty{0, 2, 5, 5, 4, 4, kByHeads, true};
  for (const Sizes& s : {packed, packed_plain, packed_blocks, packed_empty}) {
    add_both(s, {}, &rows);
    add_both(s, {.mask = added(s, -kInfinity), .guarded = true}, &rows);
  }
  // A mask for each element of the batch, one row for all queries; one for each head.
  add_both(small, {.mask = {{2, 1, 1, 7}, -9, 0}}, &rows);
  add_both(small, {.mask = {{2, 5, 7}, -9, 0}}, &rows);
  // Rows that are masked entirely: NaN, or 0 where that is guarded against, or the mean where the mask is finite.
  for (const bool guarded : {false, true}) {
    for (const float masked : {-kInfinity, -std::numeric_limits<float>::max(), -1e30f}) {
      Tensor mask(DType::kFloat, {5, 7});
      for (int64_t i = 0; i < mask.size(); ++i) mask.set(i, i / 7 == 2 || i % 7 > 4 ? masked : 0.0f);
      add_both(small, {.mask = {.value = mask}, .guarded = guarded}, &rows);
      if (guarded) add_both(small, {.mask = {.value = mask}, .guarded = guarded, .hidden = -1e29f}, &rows);
    }
  }
  return rows;
}

}  // namespace onnx_train
