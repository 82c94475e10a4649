// Batches of products by oneDNN, for nodes.
#include <string_view>

#include "kernels/cpu/onednn/primitives/chain.h"
#include "kernels/cpu/products/onednn.h"

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

using Matmul = dnnl::matmul::primitive_desc;

bool is_gemm(const Matmul& product) { return std::string_view(product.impl_info_str()).starts_with("gemm"); }

Matmul with_gemm(const Matmul& product) {
  Matmul next = product;
  while (next.next_impl()) {
    if (is_gemm(next)) return next;
  }
  return product;
}

}  // namespace

bool has_gemm(const NodeSpec& spec, const Product& p) {
  const Chain chain;
  const Matmul first(chain.engine(), layout(p.a, p.m, p.k, spec.in_type(0)), layout(p.b, p.k, p.n, spec.in_type(1)),
                     layout(p.y, p.m, p.n, spec.out_type()), Chain::attributes());
  return !is_gemm(first) && is_gemm(with_gemm(first));
}

Prepared prepare_onednn(const NodeSpec& spec, Product p, bool bias, Implementation implementation) {
  return prepare_chain(spec, [&](Chain& chain) {
    const DType from = spec.in_type(0), b_type = spec.in_type(1), to = spec.out_type();
    OneDnnOperand a = input(0, layout(p.a, p.m, p.k, from)), made = output(0, layout(p.y, p.m, p.n, to));
    const OneDnnOperand y = made;
    if (is_slow(chain, spec, p)) {
      Product copied = p;
      copied.a = row_major_matrices(p.a.batch, p.m, p.k);
      if (!p.accumulate) copied.y = row_major_matrices(p.y.batch, p.m, p.n);
      a = chain.in_layout(a, layout(copied.a, p.m, p.k, from));
      made = chain.staged(y, layout(copied.y, p.m, p.n, to));
      p = copied;
      merge_batches(p);
      a.layout = layout(p.a, p.m, p.k, from);
    }
    const OneDnnOperand to_write{made.place, layout(p.y, p.m, p.n, to)};
    const OneDnnOperand b = input(1, layout(p.b, p.k, p.n, b_type));
    auto attributes = Chain::attributes();
    dnnl::post_ops after;
    if (p.alpha != 1) after.append_eltwise(dnnl::algorithm::eltwise_linear, static_cast<float>(p.alpha), 0);
    if (p.accumulate) after.append_sum(1);
    attributes.set_post_ops(after);
    Desc wanted = b.layout;
    if (implementation == Implementation::kPacked)
      wanted = {b.layout.get_dims(), b.layout.get_data_type(), dnnl::memory::format_tag::any};
    const Shape ones(p.y.batch.size(), 1);
    const OneDnnOperand to_add = input(2, layout(row_major_matrices(ones, 1, p.n), 1, p.n));
    Matmul product = bias ? Matmul(chain.engine(), a.layout, wanted, to_add.layout, to_write.layout, attributes)
                          : Matmul(chain.engine(), a.layout, wanted, to_write.layout, attributes);
    if (implementation == Implementation::kGemm) product = with_gemm(product);
    std::vector<std::pair<int, OneDnnOperand>> operands = {
        {DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, chain.in_layout(b, product.weights_desc())}, {DNNL_ARG_DST, to_write}};
    if (bias) operands.push_back({DNNL_ARG_BIAS, to_add});
    chain.add(product, operands);
    chain.reorder(made, y);
  });
}

}  // namespace onnx_train::cpu
