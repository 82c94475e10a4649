// Activations, products and convolutions of com.microsoft.
#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// The axes of an operand of a product. `transposes` swaps its last two; `batch` moves its second last axis to the front
// and keeps the last: [rows, batch.., columns] -> [batch.., rows, columns], before that swap.
Var oriented(const Foreign& f, int i, const char* transposes, const char* batch) {
  Var x = f.x(i);
  const bool swap = f.node().attr(transposes, 0) != 0, front = f.node().attr(batch, 0) != 0;
  if (!swap && !front) return x;
  const int64_t rank = f.rank(i);
  if (rank < 2) return x;  // a vector has no transpose
  std::vector<int64_t> order;
  for (int64_t axis = 0; axis < rank; ++axis) order.push_back(axis);
  if (front) {
    order.erase(order.begin());
    order.insert(order.end() - 1, 0);
  }
  if (swap) std::swap(order[order.size() - 1], order[order.size() - 2]);
  return transpose(x, order);
}

// Y = alpha A' B', A' and B' with the transposes of the attributes
Results fused_matmul(Foreign& f) {
  const Var a = oriented(f, 0, "transA", "transBatchA");
  const Var y = matmul(a, oriented(f, 1, "transB", "transBatchB"));
  const float alpha = f.node().attr("alpha", 1.0f);
  return f.to(alpha == 1 ? y : y * static_cast<double>(alpha));
}

Var gelu(const Foreign& f, Var x, bool tanh = false) {
  return f.b().op("Gelu", {x}, tanh ? Attrs{{"approximate", "tanh"}} : Attrs{});
}

// Y = activation(alpha A' B' + beta C)
Results fused_gemm(Foreign& f) {
  std::vector<Var> inputs = {f.x(0), f.x(1)};
  if (f.has(2)) inputs.push_back(f.x(2));
  const Var y = f.b().op("Gemm", inputs, f.attributes({"alpha", "beta", "transA", "transB"}));
  std::vector<float> numbers;
  for (const char* name : {"activation_alpha", "activation_beta"}) {
    if (f.node().has_attr(name)) numbers.push_back(f.node().attr(name, 0.0f));
  }
  return f.to(fused_activation(f, y, numbers));
}

Var convolution(const Foreign& f, Var x, Var w) {
  std::vector<Var> inputs = {x, w};
  if (f.has(2)) inputs.push_back(f.x(2));
  return f.b().op("Conv", inputs, f.attributes({"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}));
}

// Y = activation(conv(X, W) + B + Z)
Results fused_conv(Foreign& f) {
  const Var y = plus(convolution(f, f.x(0), f.x(1)), f.maybe(3));
  return f.to(fused_activation(f, y, f.node().attr("activation_params", std::vector<float>())));
}

// Y = conv(X, W) + B on images [batch, sizes.., channels], with filters [out, sizes.., in]
Results channels_last_conv(Foreign& f) {
  const int64_t rank = f.rank(0);
  std::vector<int64_t> first = {0, rank - 1}, last = {0};
  for (int64_t axis = 1; axis < rank - 1; ++axis) first.push_back(axis);
  for (int64_t axis = 2; axis < rank; ++axis) last.push_back(axis);
  last.push_back(1);
  const Var x = transpose(f.x(0), first), w = transpose(f.x(1), first);
  return f.to(transpose(convolution(f, x, w), last));
}

// y = left gelu(right), the halves of x + bias along the last axis
Results bias_split_gelu(Foreign& f) {
  const int64_t half = f.size(1, 0) / 2;
  const std::vector<Var> halves = f.b().ops("Split", 2, {f.x(0) + f.x(1), f.b().ints({half, half})}, {{"axis", -1}});
  return f.to(halves[0] * gelu(f, halves[1]));
}

// y[i, j] = ‖a[i] - b[j]‖, or its square. Where two rows are equal the gradient is 0, as PyTorch's cdist has it.
Results distances(Foreign& f) {
  const std::string metric = f.node().attr("metric", "sqeuclidean");
  if (metric != "euclidean" && metric != "sqeuclidean")
    f.refuse(concat("its metric '", metric, "' is not known; export the model again"));
  const Var rows = unsqueeze(f.x(0), {1}), apart = rows - unsqueeze(f.x(1), {0});
  const Var square = reduce_sum(apart * apart, {2}, /*keepdims=*/false);
  if (metric == "sqeuclidean") return f.to(square);
  const Var is_apart = f.b().op("Greater", {square, f.b().scalar(square.dtype(), 0)});
  return f.to(where(is_apart, sqrt(where(is_apart, square, 1.0)), 0.0));
}

// y = x⁻¹ of each matrix
Results inverse_of_matrices(Foreign& f) {
  constexpr int64_t kMost = 256;  // the text of the body grows with the square
  const int64_t rows = f.size(0, -2), columns = f.size(0, -1);
  if (rows != columns || rows < 1 || rows > kMost)
    f.refuse(concat("it inverts matrices of ", rows, " x ", columns, "; they must be square, and of 1 to ", kMost,
                    " rows here"));
  return f.to(call(f.b(), "Inverse", {f.x()}));
}

}  // namespace

std::vector<ForeignRow> microsoft_rows() {
  return {
      {"Gelu", [](Foreign& f) { return f.to(gelu(f, f.x())); }},
      {"BiasGelu", [](Foreign& f) { return f.to(gelu(f, f.x(0) + f.x(1))); }},
      {"FastGelu", [](Foreign& f) { return f.to(gelu(f, plus(f.x(0), f.maybe(1)), /*tanh=*/true)); }},
      // y = x sigmoid(alpha x)
      {"QuickGelu",
       [](Foreign& f) {
         const auto alpha = static_cast<double>(f.node().attr("alpha", 1.702f));
         return f.to(f.x() * sigmoid(alpha == 1 ? f.x() : f.x() * alpha));
       }},
      {"BiasSplitGelu", bias_split_gelu},
      {"BiasAdd", [](Foreign& f) { return f.to(f.x(0) + f.x(1) + f.x(2)); }},
      {"FusedMatMul", fused_matmul},
      {"TransposeMatMul", fused_matmul},
      {"FusedGemm", fused_gemm},
      {"Inverse", inverse_of_matrices},
      {"CDist", distances},
      {"FusedConv", fused_conv},
      {"NhwcConv", channels_last_conv},
  };
}

}  // namespace onnx_train
