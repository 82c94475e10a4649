#include "kernels/cuda/products/cudnn.h"

#include <optional>

#include "kernels/cuda/choices/cudnn_graph.h"
#include "kernels/cuda/products/activations.h"
#include "kernels/cuda/products/cublas.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

// Ids of a graph's tensors.
enum TensorId : int64_t { kA = 1, kB, kBias, kX, kY };

// An ActivatedProduct as the library describes it. Equal descriptions share a graph.
struct Description {
  DType type;
  Activation activation;
  bool is_gradient, has_bias, writes_x;
  CudnnLayout a, b, y;  // layouts [batch, rows, columns]; x has that of y

  auto operator<=>(const Description&) const = default;  // NOLINT(modernize-use-nullptr): its 0 is no pointer
};

CudnnLayout layout_of(const Matrices& matrices, int64_t rows, int64_t columns) {
  const int64_t batch = matrices.batch.empty() ? 1 : matrices.batch[0];
  const int64_t stride = batch == 1 ? rows * columns : matrices.batch_strides[0];
  return {{batch, rows, columns}, {stride, matrices.row_stride, matrices.column_stride}};
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

Description describe(const ActivatedProduct& product, DType type) {
  const Product& p = product.product;
  return {.type = type,
          .activation = product.activation,
          .is_gradient = product.is_gradient,
          .has_bias = product.bias >= 0,
          .writes_x = product.kept >= 0,
          .a = layout_of(p.a, p.m, p.k),
          .b = layout_of(p.b, p.k, p.n),
          .y = layout_of(p.y, p.m, p.n)};
}

class ProductGraph : public CudnnGraph {
 public:
  explicit ProductGraph(const Description& d) : CudnnGraph(d.type), d_(d) {}

  // Returns false if the library has no algorithm.
  bool make(cudnnHandle_t handle) {
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
    return make_plans(handle);
  }

 private:
  TensorPointer combine(const TensorPointer& x, const TensorPointer& with, fe::PointwiseMode_t mode) {
    return graph_.pointwise(x, with, fe::graph::Pointwise_attributes().set_mode(mode));
  }
  Description d_;
};

// The graph of a node; null if the library has no algorithm.
std::shared_ptr<ProductGraph> graph_of(const NodeSpec& spec, const std::optional<ActivatedProduct>& p) {
  return p ? shared_graph<ProductGraph>(describe(*p, spec.out_type())) : nullptr;
}

// Prepares a node for a plan of the graph, by its number.
Prepared prepare_plan(const NodeSpec& spec, const ActivatedProduct& p, const std::shared_ptr<ProductGraph>& graph,
                      int64_t plan) {
  const auto run = [=, label = spec.node().label()](const Launch& launch) {
    const auto input = [&](int i) { return const_cast<void*>(launch.inputs[i]); };
    std::unordered_map<int64_t, void*> addresses = {{kA, input(0)}, {kB, input(1)}};
    if (p.bias >= 0) addresses[kBias] = input(p.bias);
    if (p.at >= 0) addresses[kX] = input(p.at);
    if (p.kept >= 0) addresses[kX] = launch.outputs[p.kept];
    addresses[kY] = launch.outputs[0];
    graph->run(launch, label, plan, std::move(addresses), launch.workspace);
  };
  return {run, graph->workspace(plan)};
}

// cuDNN's own choice is the rule. Its other plans come last, since it compiles each.
Prepared prepare_with_activation(const NodeSpec& spec, Product (*product_of)(const NodeSpec&)) {
  const ActivatedProduct p = *activated_product(spec, product_of);
  const std::shared_ptr<ProductGraph> graph = graph_of(spec, p);
  std::vector<Form> forms, of_library;
  add_plans(
      graph, "cuDNN, ", [=](int64_t plan) { return prepare_plan(spec, p, graph, plan); }, &forms);
  add_library_forms(spec, p, &of_library);
  forms.insert(forms.begin() + 1, of_library.begin(), of_library.end());
  return fastest(spec, concat(cudnn_library().description(), ", ", LibraryProduct::version()), forms);
}

template <Product (*kProduct)(const NodeSpec&)>
Kernel row(const char* op) {
  const Kernel row = {
      op, [](const NodeSpec& spec) { return graph_of(spec, activated_product(spec, kProduct)) != nullptr; },
      [](const NodeSpec& spec) { return prepare_with_activation(spec, kProduct); }, kDomain, "product with activation"};
  return row.with_epilogues(epilogues_of(
      op, {"gelu", "bias, gelu", "keep, gelu", "bias, keep, gelu", "gelu_tanh", "bias, gelu_tanh", "keep, gelu_tanh",
           "bias, keep, gelu_tanh", "relu_gradient", "gelu_gradient", "gelu_tanh_gradient"}));
}

}  // namespace

std::vector<Kernel> cudnn_product_kernels() {
  return {row<matmul_product>("MatMul"), row<gemm_product>("Gemm"), row<transposed_matmul_product>("TransposedMatMul")};
}

}  // namespace onnx_train::cuda
