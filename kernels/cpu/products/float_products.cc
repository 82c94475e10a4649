// Products of float32 operands, or of bfloat16 operands with float32 sums; the result may be stored as bfloat16. Large
// products are computed in the way that is the fastest on this processor: on AMX (amx_product.h), row by row
// (row_product.h), or by oneDNN in one of several ways; OpenBLAS, which takes about twice as long
// (docs/performance.md), is for where there is no oneDNN. Transposed operands are strides, not copies.
#include <algorithm>

#include "kernels/cpu/products/amx_product.h"
#include "kernels/cpu/products/onednn.h"
#include "kernels/cpu/products/products.h"
#include "kernels/cpu/products/row_product.h"
#include "kernels/cpu/support/choices.h"
#include "kernels/cpu/support/onednn.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

// oneDNN's general implementation divides few sums of many products by the number of threads, in bfloat16 always:
// another number would give other bits.
bool may_take_gemm(const Product& p, DType from) {
  constexpr int64_t kFewSums = 1 << 16;
  return from == DType::kFloat && p.y.batch.empty() && p.m * p.n >= kFewSums;
}

// Where nothing is timed; the limits were measured.
bool prefers_gemm(const Product& p) {
  constexpr int64_t kLong = 2048;
  return p.m >= 64 && p.n >= 256 && p.b.column_stride == 1 && (p.n > kLong || (p.k > kLong && p.a.column_stride == 1));
}

// Whether to copy b into the layout that oneDNN prefers: b fits the cache and a has so many rows that the copy costs
// less than it saves, at most a tenth of the product.
bool is_worth_packing(const Product& p) {
  constexpr int64_t kManyRows = 1024, kFewElements = 1 << 19;
  return p.y.batch.empty() && p.m >= kManyRows && p.k * p.n <= kFewElements;
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

// ---- Ways

// Returns the strides of smaller matrices. Lines that follow each other without a gap in x still do.
Matrices resized(Matrices x, int64_t rows, int64_t columns, int64_t new_rows, int64_t new_columns) {
  if (x.column_stride == 1 && x.row_stride == columns) x.row_stride = new_columns;
  if (x.row_stride == 1 && x.column_stride == rows) x.column_stride = new_rows;
  return x;
}

// What is timed in the place of a product: one of fewer rows, columns and products. b keeps its size as far as it can,
// up to one that no cache holds: how often b is read is what the ways differ in. A run takes at most 2^34 operations.
Product sample_of(const Product& p) {
  constexpr int64_t kRows = 1024, kLong = 4096, kProducts = int64_t{1} << 33;
  const auto limited = [=](int64_t size, int64_t other) {
    return std::min(size, std::max(kLong * kLong / std::max(other, int64_t{1}), kLong));
  };
  Product sample = p;
  if (!p.y.batch.empty()) return sample;
  sample.k = limited(p.k, p.n);
  sample.n = limited(p.n, sample.k);
  sample.m = std::min({p.m, kRows, kProducts / std::max(sample.k * sample.n, int64_t{1})});
  sample.a = resized(p.a, p.m, p.k, sample.m, sample.k);
  sample.b = resized(p.b, p.k, p.n, sample.k, sample.n);
  sample.y = resized(p.y, p.m, p.n, sample.m, sample.n);
  return sample;
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
  const DType from = spec.in_type();
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
  const bool all_float = from == DType::kFloat && spec.in_type(1) == from && spec.out_type() == from;
  add("rows", all_float && supports_row_product(p), is_row_product(p),
      [bias](const Product& q) { return prepare_row_product(q, bias); });
  const auto onednn = [&](Implementation implementation) {
    return [&spec, bias, implementation](const Product& q) { return prepare_onednn(spec, q, bias, implementation); };
  };
  constexpr size_t kMostCopied = size_t{32} << 20;  // bytes of a copy of b, which is a part of the arena
  const bool is_one = p.y.batch.empty(),
             can_pack = is_one && static_cast<size_t>(p.k * p.n) * size_of(spec.in_type(1)) <= kMostCopied;
  const bool packs = is_worth_packing(p), there = has_onednn(),
             can_gemm = there && may_take_gemm(p, from) && has_gemm(spec, p);
  add("oneDNN's gemm", can_gemm, prefers_gemm(p), onednn(Implementation::kGemm));
  add("oneDNN, packed", there && can_pack, packs, onednn(Implementation::kPacked));
  add("oneDNN", there, true, onednn(Implementation::kFirst));
  add("BLAS", !there, true, [&spec, bias](const Product& q) { return prepare_blas_product(spec, q, bias); });
  const std::string rest = concat(packs ? ", packed by rule" : "", can_pack ? "" : ", too large to pack");
  const double flops = 2.0 * static_cast<double>(p.m * p.n * p.k * num_elements(p.y.batch));
  return fastest(spec, {text_of(spec, sample, rest), extent_of(spec, sample)}, flops, std::move(ways));
}

}  // namespace onnx_train::cpu
