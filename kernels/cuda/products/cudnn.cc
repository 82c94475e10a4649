#include "kernels/cuda/products/cudnn.h"

#include <optional>

#include "kernels/cuda/support/cudnn_graph.h"
#include "kernels/cuda/support/pack.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/geometry/products.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

// Ids of a graph's tensors.
enum TensorId : int64_t { kA = 1, kB, kBias, kX, kY };

enum class Activation { kRelu, kGelu, kGeluTanh };

// y = f(x), where x = a b + bias, or y = f'(x) (a b), as the library describes them. Equal descriptions share a graph.
struct Description {
  DType type;
  Activation activation;
  bool is_gradient, has_bias;
  bool writes_x;        // forward only
  CudnnLayout a, b, y;  // layouts [batch, rows, columns]; x has that of y

  auto operator<=>(const Description&) const = default;  // NOLINT(modernize-use-nullptr): its 0 is no pointer
};

CudnnLayout layout_of(const Matrices& matrices, int64_t rows, int64_t columns) {
  const int64_t batch = matrices.batch.empty() ? 1 : matrices.batch[0];
  const int64_t stride = batch == 1 ? rows * columns : matrices.batch_strides[0];
  return {{batch, rows, columns}, {stride, matrices.row_stride, matrices.column_stride}};
}

std::optional<Activation> activation_of(const std::string& function) {
  if (function == "Relu") return Activation::kRelu;
  if (function == "Gelu") return Activation::kGelu;
  if (function == "GeluTanh") return Activation::kGeluTanh;
  return std::nullopt;
}

fe::PointwiseMode_t mode_of(Activation activation, bool is_gradient) {
  using Mode = fe::PointwiseMode_t;
  switch (activation) {
    case Activation::kRelu: return is_gradient ? Mode::RELU_BWD : Mode::RELU_FWD;
    case Activation::kGelu: return is_gradient ? Mode::GELU_BWD : Mode::GELU_FWD;
    case Activation::kGeluTanh: return is_gradient ? Mode::GELU_APPROX_TANH_BWD : Mode::GELU_APPROX_TANH_FWD;
  }
  return Mode::NOT_SET;
}

bool has_types(const NodeSpec& spec) {
  const DType type = spec.out_type();
  if (!is_half(type)) return false;
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (!spec.has_input(i) || spec.in_type(i) != type) return false;
  }
  return spec.num_outputs() == 1 || spec.out_type(1) == type;
}

// Returns nothing if the library cannot express the node.
std::optional<Description> describe(const NodeSpec& spec, Product (*product_of)(const NodeSpec&)) {
  const Epilogue epilogue = epilogue_of(spec);
  const bool is_gradient = epilogue == Epilogue::kActivationGradient;
  if (!(is_gradient || epilogue == Epilogue::kActivation) || !has_types(spec)) return std::nullopt;
  const auto activation = activation_of(spec.node().attr(is_gradient ? "activation_gradient" : "activation", ""));
  if (!activation || (*activation == Activation::kRelu && !is_gradient)) return std::nullopt;
  if (spec.in_size(0) == 0 || spec.in_size(1) == 0) return std::nullopt;
  const bool has_bias = !is_gradient && spec.num_inputs() > 2;
  if (has_bias && !is_row_of_result(spec, 2)) return std::nullopt;
  Product p = product_of(spec);
  merge_batches(p);
  // The library supports rows of any length, but is fast only for whole vectors.
  const auto is_whole = [](int64_t n) { return n * static_cast<int64_t>(sizeof(BFloat16)) % kVectorBytes == 0; };
  if (p.y.batch.size() > 1 || p.alpha != 1 || !is_whole(p.n) || !is_whole(p.k)) return std::nullopt;
  return Description{.type = spec.out_type(),
                     .activation = *activation,
                     .is_gradient = is_gradient,
                     .has_bias = has_bias,
                     .writes_x = !is_gradient && spec.num_outputs() > 1,
                     .a = layout_of(p.a, p.m, p.k),
                     .b = layout_of(p.b, p.k, p.n),
                     .y = layout_of(p.y, p.m, p.n)};
}

class ProductGraph : public CudnnGraph {
 public:
  explicit ProductGraph(const Description& d) : CudnnGraph(d.type), d_(d) {}

  // Returns false if the library has no algorithm.
  bool build(cudnnHandle_t handle) {
    TensorPointer x = graph_.matmul(operand(kA, d_.a), operand(kB, d_.b), fe::graph::Matmul_attributes());
    if (d_.has_bias) {
      const int64_t n = d_.y.sizes[2];
      x = combine(x, operand(kBias, {{1, 1, n}, {n, n, 1}}), fe::PointwiseMode_t::ADD);
    }
    const fe::PointwiseMode_t mode = mode_of(d_.activation, d_.is_gradient);
    if (d_.writes_x) write(x, kX, d_.y);
    const TensorPointer y = d_.is_gradient ? combine(x, operand(kX, d_.y), mode)
                                           : graph_.pointwise(x, fe::graph::Pointwise_attributes().set_mode(mode));
    write(y, kY, d_.y);
    return make_plan(handle);
  }

 private:
  TensorPointer combine(const TensorPointer& x, const TensorPointer& with, fe::PointwiseMode_t mode) {
    return graph_.pointwise(x, with, fe::graph::Pointwise_attributes().set_mode(mode));
  }
  Description d_;
};

// The graph of a node; null if the library has no algorithm.
std::shared_ptr<const ProductGraph> graph_of(const std::optional<Description>& d) {
  return d ? shared_graph<ProductGraph>(*d) : nullptr;
}

Prepared prepare_with_activation(const NodeSpec& spec, Product (*product_of)(const NodeSpec&)) {
  const std::optional<Description> d = describe(spec, product_of);
  const std::shared_ptr<const ProductGraph> graph = graph_of(d);
  const auto run = [=, label = spec.node().label(), d = *d](const Launch& launch) {
    const auto input = [&](int i) { return const_cast<void*>(launch.inputs[i]); };
    std::unordered_map<int64_t, void*> addresses = {{kA, input(0)}, {kB, input(1)}};
    if (d.has_bias) addresses[kBias] = input(2);
    if (d.is_gradient) addresses[kX] = input(2);
    if (d.writes_x) addresses[kX] = launch.outputs[0];
    addresses[kY] = launch.outputs[d.writes_x ? 1 : 0];
    graph->run(launch, label, std::move(addresses), launch.workspace);
  };
  return {run, graph->workspace()};
}

template <Product (*kProduct)(const NodeSpec&)>
Kernel row(const char* op) {
  return {op, [](const NodeSpec& spec) { return graph_of(describe(spec, kProduct)) != nullptr; },
          [](const NodeSpec& spec) { return prepare_with_activation(spec, kProduct); }, kDomain, "cuDNN product"};
}

}  // namespace

std::vector<Kernel> cudnn_product_kernels() {
  return {row<matmul_product>("MatMul"), row<gemm_product>("Gemm"), row<transposed_matmul_product>("TransposedMatMul")};
}

}  // namespace onnx_train::cuda
