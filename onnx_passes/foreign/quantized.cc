// Products with weights, and look-ups in tables, in a few bits of com.microsoft. Such weights are frozen; gradients
// flow to the other operand.
#include <bit>
#include <limits>

#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/equal_tensors.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
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

// Integers q and their zero points z: x = (q - z) scale. Of 4 bits, in the place of 0 to 15, both are -8 to 7.
struct Integers {
  Tensor q, z;  // z is empty where all are 0
};

// Makes q - 8 of integers q of 4 bits in such rows, which stay packed. Rows have an even number of them.
Tensor signed_integers(const Tensor& bytes, int64_t rows, int64_t columns, int64_t stride) {
  Tensor packed(DType::kUint8, {rows * columns / 2});
  const uint8_t* from = bytes.data<uint8_t>();
  auto* to = packed.data<uint8_t>();
  for (int64_t r = 0; r < rows; ++r, from += stride, to += columns / 2) {
    for (int64_t c = 0; c < columns / 2; ++c) to[c] = from[c] ^ 0x88;
  }
  release_pages(bytes);
  return Tensor::unpacked(DType::kInt8, {rows, columns}, packed);
}

// `zeros`: empty where all are half of the range.
Integers integers_of(const Tensor& bytes, int64_t rows, int64_t columns, int64_t stride, int64_t bits,
                     const Tensor& zeros, const Shape& blocks) {
  const double half = static_cast<double>(1 << (bits - 1));
  if (bits != 4 || columns % 2 != 0) {
    return {unpack(bytes, rows, columns, stride, bits),
            zeros.empty() ? Tensor::full(DType::kUint8, blocks, half) : zeros};
  }
  Integers integers{signed_integers(bytes, rows, columns, stride), {}};
  if (zeros.empty() || zeros.holds_only(half)) return integers;
  integers.z = Tensor(DType::kInt8, blocks);
  for (int64_t i = 0; i < zeros.size(); ++i) integers.z.set(i, zeros.at(i) - half);
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

// An initializer that nodes with one stored weight share: a table of words that is the head, too.
Var shared_initializer(Builder* b, const std::string& name, const Tensor& contents) {
  Graph& graph = b->graph();
  Value* known = graph.find(name);
  if (known && known->is_initializer() && are_same(constant_of(known), contents)) return b->var(known);
  onnx::TensorProto message;
  message.set_name(graph.unique_name(name));
  if (contents.packed()) {
    auto* entry = message.add_metadata_props();
    entry->set_key(kFourBits);
    entry->set_value("1");
  }
  const std::string unique = message.name();
  return b->var(graph.add_initializer(unique, make_initializer(std::move(message), contents)));
}

// The integers and the scales of the weight that the file calls `stored`.
Var stored_integers(Builder* b, const Value& stored, const Tensor& integers) {
  const Var q = shared_initializer(b, stored.name() + "_quantized", integers);
  Value* value = q.value();
  if (other_names(*value).empty()) {
    for (const std::string& name : original_names(stored)) value = add_other_name(value, name);
  }
  return b->var(value);
}
Var stored_scales(Builder* b, const Value& stored, const Tensor& scales) {
  return shared_initializer(b, stored.name() + "_scale", scales);
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
  Tensor zeros;
  if (f.has(3)) {
    if (f.x(3).dtype() != DType::kUint8) f.refuse("its zero points are floats; quantize the model with integer ones");
    const int64_t per_row = (blocks * bits + 7) / 8;
    zeros = unpack(constant_input(f, 3, "zero points", DType::kUint8, n * per_row), n, blocks, per_row, bits);
  }
  const Integers integers = integers_of(packed, n, k, row_bytes, bits, zeros, {n, blocks});
  Builder& b = f.b();
  std::vector<Var> inputs = {stored_integers(&b, *node.input(1), integers.q),
                             stored_scales(&b, *node.input(1), scales.reshaped({n, blocks}))};
  if (!integers.z.empty()) inputs.push_back(b.constant(integers.z));
  const Var w = b.op("DequantizeLinear", inputs, {{"axis", 1}, {"block_size", block}});
  return f.to(plus(matmul(f.x(0), transpose(w, {1, 0})), f.maybe(5)));
}

// What the value is, before nodes that give it another shape.
const Value& source_of(const Value& value) {
  const Value* source = &value;
  while (source->producer() && (source->producer()->is("Reshape") || source->producer()->is("Identity")))
    source = source->producer()->input(0);
  return *source;
}

// The contents of an input that a Reshape may give another shape.
Tensor reshaped_input(const Foreign& f, int i, const char* what) {
  const Value& value = *f.x(i).value();
  const Tensor known = constant_of(&source_of(value));
  if (known.empty() || !value.type().is_static() || num_elements(value.type().shape()) != known.size())
    f.refuse(concat("its ", what, " are no constants; export the model with weights in the file"));
  return known.reshaped(value.type().shape());
}

// Y = (q - z) scale of the rows of a table [N, K] that indices name, with a scale and a z for each `block` elements of
// a row. Bytes hold as many integers as `bits` says; of a type of 4 bits importing has made bytes, and its z is 0
// unless it is given.
Results gather_of_bits(Foreign& f) {
  const Node& node = f.node();
  const int64_t block = node.attr("block_size", 128), rank = f.rank(1) + 1, axis = node.attr("quantize_axis", 1);
  const Tensor table = reshaped_input(f, 0, "weights");
  const bool is_table = table.shape().size() == 2 && node.attr("gather_axis", 0) == 0 && (axis == 1 || axis == -1);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (!is_table || block < 1 || block > kMost || (table.dtype() != DType::kUint8 && table.dtype() != DType::kInt8))
    f.refuse("it looks up no rows of a table in integers with blocks along them; quantize the model again");
  const bool had_four = had_four_bits(&source_of(*node.input(0)));
  const int64_t bits = had_four ? 8 : node.attr("bits", 4);
  if (bits != 2 && bits != 4 && bits != 8) f.refuse(concat("bits ", bits, "; it has 2, 4 or 8 bits here"));
  const int64_t rows = table.shape()[0], columns = table.shape()[1] * (8 / bits),
                blocks = (columns + block - 1) / block;
  const Tensor scales = constant_input(f, 2, "scales", f.x(2).dtype(), rows * blocks).reshaped({rows, blocks});
  Tensor zeros;
  if (f.has(3)) {
    const int64_t bytes = (blocks * bits + 7) / 8;
    const Tensor given = constant_input(f, 3, "zero points", table.dtype(), rows * bytes);
    zeros = bits == 8 ? given.reshaped({rows, blocks}) : unpack(given, rows, blocks, bytes, bits);
  }
  Integers integers{table, zeros};
  if (bits != 8) integers = integers_of(table, rows, columns, table.shape()[1], bits, zeros, {rows, blocks});
  if (bits == 8 && !had_four && zeros.empty()) integers.z = Tensor::full(table.dtype(), {rows, blocks}, 128);
  Builder& b = f.b();
  const Value& stored = source_of(*node.input(0));
  const auto looked_up = [&](Var of) { return gather(of, f.x(1), 0); };
  std::vector<Var> inputs = {looked_up(stored_integers(&b, stored, integers.q)),
                             looked_up(stored_scales(&b, stored, scales))};
  if (!integers.z.empty()) inputs.push_back(looked_up(b.constant(integers.z)));
  return f.to(b.op("DequantizeLinear", inputs, {{"axis", rank - 1}, {"block_size", block}}));
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
  std::vector<ForeignRow> rows = {{"MatMulNBits", matmul_of_bits}, {"GatherBlockQuantized", gather_of_bits}};
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
