// Products of float32 operands, or of bfloat16 operands with float32 sums; the result may be stored as bfloat16. Large
// products are computed in the way that is the fastest on this processor: on AMX (amx_product.h), or by oneDNN in one
// of several ways; OpenBLAS takes about twice as long (docs/performance.md). Transposed operands are strides, not
// copies.
#include <algorithm>
#include <string_view>
#include <tuple>

#include "kernels/cpu/products/amx_product.h"
#include "kernels/cpu/products/products.h"
#include "kernels/cpu/support/choices.h"
#include "kernels/cpu/support/cpu_features.h"
#include "kernels/cpu/support/onednn.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

using Desc = dnnl::memory::desc;

Desc layout(const Matrices& matrices, int64_t rows, int64_t columns, DType dtype = DType::kFloat) {
  Shape dims = matrices.batch, strides = matrices.batch_strides;
  dims.insert(dims.end(), {rows, columns});
  strides.insert(strides.end(), {matrices.row_stride, matrices.column_stride});
  return {dims, data_type(dtype), strides};
}

// oneDNN has fast code for most orders of batch and row axes. For the others its reference loops are a hundred times
// slower, so operands are first copied into the usual order.
bool is_slow(const Chain& chain, const NodeSpec& spec, const Product& p) {
  const dnnl::matmul::primitive_desc found(chain.engine(), layout(p.a, p.m, p.k, spec.in_type(0)),
                                           layout(p.b, p.k, p.n, spec.in_type(1)),
                                           layout(p.y, p.m, p.n, spec.out_type()), Chain::attributes());
  return std::string_view(found.impl_info_str()).starts_with("ref");
}

// Blocks for oneDNN's product with a row-major b. Without blocks it is up to two fifths slower when b has many or long
// rows, because it reads all of b for every few rows of a. The blocks of b stay in the cache and are multiplied one
// after the other, without a copy of b.
//
// The limits were measured. For small y the additional calls cost more than they save; with bfloat16 operands b needs
// half the cache; on AMX oneDNN copies b in any case, so blocks save nothing.
struct Blocks {
  int64_t k, n;  // rows and columns of a block of b; the last blocks may be smaller

  explicit Blocks(const Product& p) : k(p.k), n(p.n) {}

  static Blocks by_rule(const Product& p, DType from, DType to) {
    Blocks blocks(p);
    const int64_t least_rows = from == DType::kFloat ? 64 : 512;
    if (p.m < least_rows || p.n < 256 || (from == DType::kBFloat16 && isa() >= Isa::kAmx)) return blocks;
    return in_parts(p, to);
  }
  static Blocks in_parts(const Product& p, DType to) {
    Blocks blocks(p);
    if (!p.y.batch.empty() || p.b.column_stride != 1) return blocks;
    blocks.n = equal_parts(p.n);
    // A bfloat16 y would be rounded after every block of k; weight gradients (a transposed) gain nothing.
    if (to == DType::kFloat && p.a.column_stride == 1) blocks.k = equal_parts(p.k);
    return blocks;
  }
  bool are_several(const Product& p) const { return k < p.k || n < p.n; }
  Product first_of(Product p) const {
    p.k = std::min(k, p.k), p.n = std::min(n, p.n);
    return p;
  }

 private:
  static int64_t equal_parts(int64_t size) {
    constexpr int64_t kMost = 2048, kMultiple = 64;
    const int64_t parts = (size + kMost - 1) / kMost, part = (size + parts - 1) / parts;
    return (part + kMultiple - 1) / kMultiple * kMultiple;
  }
};

// Returns the matrix that starts `elements` after the start of `operand`.
OneDnnOperand at_offset(OneDnnOperand operand, int64_t elements, const Desc& layout) {
  operand.place.offset += static_cast<size_t>(elements) * dnnl::memory::data_type_size(layout.get_data_type());
  return {operand.place, layout};
}

// Whether to copy b into the layout that oneDNN prefers: b fits the cache and a has so many rows that the copy costs
// less than it saves, at most a tenth of the product.
bool is_worth_packing(const Product& p) {
  constexpr int64_t kManyRows = 1024, kFewElements = 1 << 19;
  return p.y.batch.empty() && p.m >= kManyRows && p.k * p.n <= kFewElements;
}

// Appends one oneDNN product, accumulating onto y if p says so.
void add_product(Chain& chain, const Product& p, bool packs, const OneDnnOperand& a, const OneDnnOperand& b,
                 const OneDnnOperand* bias, const OneDnnOperand& y) {
  auto attributes = Chain::attributes();
  dnnl::post_ops after;
  if (p.alpha != 1) after.append_eltwise(dnnl::algorithm::eltwise_linear, static_cast<float>(p.alpha), 0);
  if (p.accumulate) after.append_sum(1);
  attributes.set_post_ops(after);
  Desc wanted = b.layout;
  if (packs) wanted = {b.layout.get_dims(), b.layout.get_data_type(), dnnl::memory::format_tag::any};
  using Matmul = dnnl::matmul::primitive_desc;
  const Matmul product = bias ? Matmul(chain.engine(), a.layout, wanted, bias->layout, y.layout, attributes)
                              : Matmul(chain.engine(), a.layout, wanted, y.layout, attributes);
  const OneDnnOperand packed = chain.in_layout(b, product.weights_desc());
  std::vector<std::pair<int, OneDnnOperand>> operands = {
      {DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, packed}, {DNNL_ARG_DST, y}};
  if (bias) operands.push_back({DNNL_ARG_BIAS, *bias});
  chain.add(product, operands);
}

template <typename T>
Prepared prepare_amx_product(const NodeSpec& spec, const Product& p, bool bias) {
  const AmxProduct<T> product(p, spec.out_type(), spec.threads());
  return {[product, bias](const Launch& launch) {
            product.run(launch.in<T>(0), launch.in<T>(1), bias ? launch.in<float>(2) : nullptr, launch.out<void>(),
                        launch.workspace);
          },
          product.scratch_bytes(),
          {}};
}

// `packs`: whether oneDNN chooses the layout of b, into which it is copied.
Prepared prepare_onednn(const NodeSpec& spec, Product p, bool bias, Blocks blocks, bool packs) {
  return prepare_chain(spec, [&](Chain& chain) {
    const DType from = spec.in_type(0), to_type = spec.out_type();
    OneDnnOperand a = input(0, layout(p.a, p.m, p.k, from)), made = output(0, layout(p.y, p.m, p.n, to_type));
    const OneDnnOperand y = made;
    if (is_slow(chain, spec, p)) {
      Product copied = p;
      copied.a = row_major_matrices(p.a.batch, p.m, p.k);
      if (!p.accumulate) copied.y = row_major_matrices(p.y.batch, p.m, p.n);
      a = chain.in_layout(a, layout(copied.a, p.m, p.k, from));
      made = chain.staged(y, layout(copied.y, p.m, p.n, to_type));
      p = copied;
      merge_batches(p);
      a.layout = layout(p.a, p.m, p.k, from);
      blocks = Blocks::by_rule(p, from, to_type);
    }
    const DType b_type = spec.in_type(1);
    const Shape ones(p.y.batch.size(), 1);
    for (int64_t n = 0; n < p.n; n += blocks.n) {
      for (int64_t k = 0; k < p.k; k += blocks.k) {
        Product part = p;
        part.n = std::min(blocks.n, p.n - n);
        part.k = std::min(blocks.k, p.k - k);
        part.accumulate = p.accumulate || k > 0;
        const OneDnnOperand part_a = at_offset(a, k * p.a.column_stride, layout(p.a, p.m, part.k, from)),
                            part_b = at_offset(input(1, {}), k * p.b.row_stride + n * p.b.column_stride,
                                               layout(p.b, part.k, part.n, b_type)),
                            part_y = at_offset(made, n * p.y.column_stride, layout(p.y, p.m, part.n, to_type)),
                            part_bias =
                                at_offset(input(2, {}), n, layout(row_major_matrices(ones, 1, part.n), 1, part.n));
        add_product(chain, part, packs, part_a, part_b, bias && k == 0 ? &part_bias : nullptr, part_y);
      }
    }
    chain.reorder(made, y);
  });
}

// ---- Ways

// What is timed in the place of a product: its first rows, columns and products. The way that takes the least time for
// more of them is the same.
Product sample_of(Product p) {
  constexpr int64_t kRows = 1024, kDepth = 4096, kColumns = 4096;
  if (p.y.batch.empty()) p.m = std::min(p.m, kRows), p.k = std::min(p.k, kDepth), p.n = std::min(p.n, kColumns);
  return p;
}

// The largest number of bytes from the start of an operand to the end of what the product reads or writes there.
size_t extent_of(const NodeSpec& spec, const Product& p) {
  if (!p.y.batch.empty()) return SIZE_MAX;
  const auto bytes = [](const Matrices& x, int64_t rows, int64_t columns, DType type) {
    return static_cast<size_t>((rows - 1) * x.row_stride + (columns - 1) * x.column_stride + 1) * size_of(type);
  };
  return std::max({bytes(p.a, p.m, p.k, spec.in_type(0)), bytes(p.b, p.k, p.n, spec.in_type(1)),
                   bytes(p.y, p.m, p.n, spec.out_type())});
}

// Products with the same text have the same ways and share one choice. The text leaves out biases and sums, so that a
// plan that fuses other nodes gives the same bits. `rest` tells what the sample does not show.
std::string text_of(const NodeSpec& spec, const Product& sample, const std::string& rest) {
  const auto layout = [](const Matrices& x) { return x.column_stride == 1 ? "" : "T"; };
  std::string text = concat("product ", name(spec.in_type()), " ", sample.m, " x ", sample.k, layout(sample.a), " x ",
                            sample.n, layout(sample.b), " ", name(spec.out_type()));
  for (const int64_t n : sample.y.batch) text += concat(", ", n);
  return text + rest;
}

}  // namespace

Prepared prepare_float_product(const NodeSpec& spec, Product p, bool bias) {
  const DType from = spec.in_type(), to = spec.out_type();
  const Product sample = sample_of(p);
  std::vector<Way> ways;
  const auto add = [&](const char* name, bool is_supported, bool is_preferred, auto prepare) {
    ways.push_back(
        {name, is_supported, is_preferred, [=, &p] { return prepare(p); }, [=, &sample] { return prepare(sample); }});
  };
  add("AMX", supports_amx_product(p), is_amx_product(p, from), [&spec, from, bias](const Product& q) {
    return from == DType::kFloat ? prepare_amx_product<float>(spec, q, bias)
                                 : prepare_amx_product<BFloat16>(spec, q, bias);
  });
  const Blocks by_rule = Blocks::by_rule(p, from, to), most = Blocks::in_parts(p, to);
  const bool has_parts = most.are_several(p), has_blocks = by_rule.are_several(p),
             packs = is_worth_packing(by_rule.first_of(p));
  constexpr size_t kMostCopied = size_t{32} << 20;  // bytes of a copy of b, which is a part of the arena
  const bool is_one = p.y.batch.empty(),
             can_pack = static_cast<size_t>(p.k * p.n) * size_of(spec.in_type(1)) <= kMostCopied;
  for (const auto& [name, in_parts, packed] : {std::tuple{"oneDNN", false, false},
                                               {"oneDNN, packed", false, true},
                                               {"oneDNN in blocks", true, false},
                                               {"oneDNN in blocks, packed", true, true}}) {
    const bool is_rule = in_parts == has_blocks && packed == packs;
    add(name, is_rule || (is_one && (has_parts || !in_parts) && (can_pack || !packed)), is_rule,
        [&spec, bias, to, in_parts = in_parts, packed = packed](const Product& q) {
          return prepare_onednn(spec, q, bias, in_parts ? Blocks::in_parts(q, to) : Blocks(q), packed);
        });
  }
  const std::string rest = concat(packs ? ", packed by rule" : "", can_pack ? "" : ", too large to pack");
  const double flops = 2.0 * static_cast<double>(p.m * p.n * p.k * num_elements(p.y.batch));
  return fastest(spec, {text_of(spec, sample, rest), extent_of(spec, sample)}, flops, std::move(ways));
}

}  // namespace onnx_train::cpu
