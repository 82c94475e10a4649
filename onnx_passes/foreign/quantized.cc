// Products with weights in a few bits of com.microsoft. Such weights are frozen; gradients flow to the other operand.
#include <bit>
#include <limits>

#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/weight_origin.h"

namespace onnx_train {
namespace {

// Takes integers of `bits` apart that are packed from the low bits of each byte on, in rows of `stride` bytes, of which
// the first `columns` integers are kept.
Tensor unpack(const Tensor& bytes, int64_t rows, int64_t columns, int64_t stride, int64_t bits) {
  Tensor integers(DType::kUint8, {rows, columns});
  const int64_t mask = (1 << bits) - 1, within = 8 / bits - 1;  // the place of an integer in its byte
  const int places = std::popcount(static_cast<uint64_t>(within));
  const uint8_t* from = bytes.data<uint8_t>();
  auto* to = integers.data<uint8_t>();
  for (int64_t r = 0; r < rows; ++r, from += stride, to += columns) {
    for (int64_t c = 0; c < columns; ++c)
      to[c] = static_cast<uint8_t>(from[c >> places] >> ((c & within) * bits) & mask);
  }
  return integers;
}

Tensor constant_input(const Foreign& f, int i, const char* what, DType dtype, int64_t size) {
  const Tensor known = constant_of(f.node().input(i));
  if (known.empty()) f.refuse(concat("its ", what, " are no constants; export the model with weights in the file"));
  if (known.dtype() != dtype || known.size() != size)
    f.refuse(concat("its ", what, " are ", name(known.dtype()), to_string(known.shape()), ", not ", size, " of type ",
                    name(dtype), "; quantize the model again"));
  return known;
}

// Y = A Wᵀ + bias, W [N, K] = (q - z) scale, with a scale and a z for each `block` elements of a row. The rows of q end
// with whole blocks.
Results matmul_of_bits(Foreign& f) {
  f.expect_absent(4, "its weights are in another order (g_idx); quantize the model without act_order");
  const Node& node = f.node();
  const int64_t k = node.attr("K", 0), n = node.attr("N", 0), bits = node.attr("bits", 4),
                block = node.attr("block_size", 0);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const bool possible = k > 0 && n > 0 && block > 0 && k < kMost && n < kMost && block < kMost && n * k < kMost * 4;
  if (!possible || (bits != 2 && bits != 4 && bits != 8))
    f.refuse(concat("bits ", bits, ", K ", k, ", N ", n, ", block_size ", block, "; it has 2, 4 or 8 bits here"));
  if (node.attr("weight_prepacked", 0) != 0)
    f.refuse("its weights are packed for one device; quantize the model again");
  const int64_t blocks = (k + block - 1) / block, row_bytes = blocks * ((block * bits + 7) / 8);
  const Tensor packed = constant_input(f, 1, "weights", DType::kUint8, n * row_bytes);
  const Tensor scales = constant_input(f, 2, "scales", f.x(2).dtype(), n * blocks);
  const Tensor integers = unpack(packed, n, k, row_bytes, bits);
  Tensor zeros = Tensor::full(DType::kUint8, {n, blocks}, static_cast<double>(1 << (bits - 1)));
  if (f.has(3)) {
    if (f.x(3).dtype() != DType::kUint8) f.refuse("its zero points are floats; quantize the model with integer ones");
    const int64_t per_row = (blocks * bits + 7) / 8;
    zeros = unpack(constant_input(f, 3, "zero points", DType::kUint8, n * per_row), n, blocks, per_row, bits);
  }
  Builder& b = f.b();
  Graph& graph = b.graph();
  const std::string& stored = node.input(1)->name();
  Value* q = graph.add_initializer(graph.unique_name(stored + "_quantized"), integers);
  for (const std::string& name : original_names(*node.input(1))) q = add_other_name(q, name);
  Value* scale = graph.add_initializer(graph.unique_name(stored + "_scale"), scales.reshaped({n, blocks}));
  const Var w =
      b.op("DequantizeLinear", {b.var(q), b.var(scale), b.constant(zeros)}, {{"axis", 1}, {"block_size", block}});
  return f.to(plus(matmul(f.x(0), transpose(w, {1, 0})), f.maybe(5)));
}

constexpr const char* kInIntegers =
    "it computes in integers that it makes of its inputs, which have no gradient; take the float model that it was "
    "made "
    "from, or quantize it in the form QDQ";

constexpr const char* kOfIntegers =
    "it computes with integers alone, which have no gradient; take the float model that it was made from, or quantize "
    "that in the form QDQ";

}  // namespace

std::vector<ForeignRow> quantized_foreign() {
  std::vector<ForeignRow> rows = {{"MatMulNBits", matmul_of_bits}};
  for (const char* op : {"DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QAttention", "QGemm",
                         "QEmbedLayerNormalization", "DynamicQuantizeLSTM"})
    rows.push_back({op, nullptr, "com.microsoft", kInIntegers});
  for (const char* op :
       {"QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu",
        "QLinearMul", "QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere"})
    rows.push_back({op, nullptr, "com.microsoft", kOfIntegers});
  return rows;
}

}  // namespace onnx_train
