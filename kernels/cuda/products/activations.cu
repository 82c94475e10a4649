#include "kernels/cuda/products/activations.h"

#include "kernels/cuda/products/algorithms.h"
#include "kernels/cuda/support/elements.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/math/activations.h"

namespace onnx_train::cuda {
namespace {

constexpr int kElements = static_cast<int>(kVectorBytes / sizeof(BFloat16));  // of a thread

// y = f(x); y may be x. n is a number of vectors.
template <typename F, typename S>
__global__ void activate(int64_t n, const S* x, S* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  auto elements = load<kElements>(x + i * kElements);
  for (int k = 0; k < kElements; ++k) elements[k] = math::convert<S>(F()(widened(elements[k])));
  store(elements, y + i * kElements);
}

// y = f(y, x), the gradient f'(x) y.
template <typename F, typename S>
__global__ void activate_gradient(int64_t n, const S* x, S* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const auto at = load<kElements>(x + i * kElements);
  auto elements = load<kElements>(y + i * kElements);
  for (int k = 0; k < kElements; ++k) elements[k] = math::convert<S>(F()(widened(elements[k]), widened(at[k])));
  store(elements, y + i * kElements);
}

// Returns a function (launch, x, y) that enqueues the activation, or its gradient, of `vectors` vectors.
template <typename S>
std::function<void(const Launch&, const void*, void*)> activation_kernel(Activation activation, bool is_gradient,
                                                                         int64_t vectors) {
  const auto of = [=](auto kernel) {
    return [=](const Launch& launch, const void* x, void* y) {
      enqueue_each(launch, "activate", kernel, vectors, static_cast<const S*>(x), static_cast<S*>(y));
    };
  };
  switch (activation) {
    case Activation::kRelu: return of(activate_gradient<math::ReluGrad, S>);
    case Activation::kGelu: return is_gradient ? of(activate_gradient<math::GeluGrad, S>) : of(activate<math::Gelu, S>);
    case Activation::kGeluTanh:
      return is_gradient ? of(activate_gradient<math::GeluTanhGrad, S>) : of(activate<math::GeluTanh, S>);
  }
  return nullptr;
}

std::optional<Activation> activation_of(const std::string& function) {
  if (function == "Relu") return Activation::kRelu;
  if (function == "Gelu") return Activation::kGelu;
  if (function == "GeluTanh") return Activation::kGeluTanh;
  return std::nullopt;
}

bool has_types(const NodeSpec& spec) {
  const DType type = spec.out_type();
  if (!is_half(type)) return false;
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (!spec.has_input(i) || spec.in_type(i) != type) return false;
  }
  return spec.num_outputs() == 1 || spec.out_type(1) == type;
}

}  // namespace

std::optional<ActivatedProduct> activated_product(const NodeSpec& spec, Product (*product_of)(const NodeSpec&)) {
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
  // cuDNN supports rows of any length, but is fast only for whole vectors.
  if (p.y.batch.size() > 1 || p.alpha != 1 || p.n % kElements != 0 || p.k % kElements != 0) return std::nullopt;
  return ActivatedProduct{p, *activation, is_gradient, has_bias, !is_gradient && spec.num_outputs() > 1};
}

void add_library_forms(const NodeSpec& spec, const ActivatedProduct& p, std::vector<Form>* forms) {
  // The addresses of a run: x is in the place of y until the activation overwrites it, if nobody reads it.
  struct Places {
    const void* bias;
    void *y, *x;
  };
  const auto places = [p](const Launch& launch) -> Places {
    void* const y = launch.outputs[p.writes_x ? 1 : 0];
    void* const x = p.is_gradient ? const_cast<void*>(launch.inputs[2]) : p.writes_x ? launch.outputs[0] : y;
    return {p.has_bias ? launch.inputs[2] : nullptr, y, x};
  };
  const Epilogue epilogue = p.has_bias ? Epilogue::kBias : Epilogue::kNone;
  if (p.activation == Activation::kGeluTanh) {
    Product product = p.product;
    product.activation = p.is_gradient ? LibraryActivation::kGeluTanhGrad
                         : p.writes_x  ? LibraryActivation::kGeluTanhWithOperand
                                       : LibraryActivation::kGeluTanh;
    add_algorithms(spec, product, epilogue, "cuBLASLt, ", forms, [=](const LibraryProduct& library) -> Prepared {
      return {[=](const Launch& launch) {
                const auto [bias, y, x] = places(launch);
                library.run(launch, launch.inputs[0], launch.inputs[1], y, bias, launch.workspace, nullptr,
                            p.is_gradient || p.writes_x ? x : nullptr);
              },
              library.workspace()};
    });
  }
  const int64_t vectors = num_elements(p.product.y.batch) * p.product.m * p.product.n / kElements;
  const auto activate = spec.out_type() == DType::kBFloat16
                            ? activation_kernel<BFloat16>(p.activation, p.is_gradient, vectors)
                            : activation_kernel<__half>(p.activation, p.is_gradient, vectors);
  add_algorithms(spec, p.product, epilogue, "activation apart, ", forms,
                 [=](const LibraryProduct& library) -> Prepared {
                   return {[=](const Launch& launch) {
                             const auto [bias, y, x] = places(launch);
                             library.run(launch, launch.inputs[0], launch.inputs[1], p.is_gradient ? y : x, bias,
                                         launch.workspace);
                             activate(launch, x, y);
                           },
                           library.workspace()};
                 });
}

}  // namespace onnx_train::cuda
