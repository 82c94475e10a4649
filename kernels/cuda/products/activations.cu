#include "kernels/cuda/products/activations.h"

#include <algorithm>

#include "kernels/cuda/products/algorithms.h"
#include "kernels/cuda/support/elements.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/math/activations.h"
#include "onnx_passes/operators/operators.h"

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

// The activation of an epilogue, or its gradient.
struct ActivationStep {
  Activation activation;
  bool is_gradient;
};

std::optional<ActivationStep> activation_of(const Epilogue& epilogue) {
  if (epilogue.empty()) return std::nullopt;
  switch (epilogue.back()) {
    case EpilogueStep::kReluGradient: return {{Activation::kRelu, true}};
    case EpilogueStep::kGelu: return {{Activation::kGelu, false}};
    case EpilogueStep::kGeluGradient: return {{Activation::kGelu, true}};
    case EpilogueStep::kGeluTanh: return {{Activation::kGeluTanh, false}};
    case EpilogueStep::kGeluTanhGradient: return {{Activation::kGeluTanh, true}};
    default: return std::nullopt;
  }
}

// Whether inputs and outputs have one 16-bit type.
bool has_types(const NodeSpec& spec) {
  const DType type = spec.out_type();
  const auto has_type = [&](const Value* value) { return !value || value->dtype() == type; };
  const auto &inputs = spec.node().inputs(), &outputs = spec.node().outputs();
  return is_half(type) && std::all_of(inputs.begin(), inputs.end(), has_type) &&
         std::all_of(outputs.begin(), outputs.end(), has_type);
}

}  // namespace

std::optional<ActivatedProduct> activated_product(const NodeSpec& spec, Product (*product_of)(const NodeSpec&)) {
  const std::optional<ActivationStep> step = activation_of(epilogue_of(spec.node()));
  if (!step || !has_types(spec) || spec.in_size(0) == 0 || spec.in_size(1) == 0) return std::nullopt;
  const int bias = bias_of(spec);
  const bool has_other_c = bias < 0 && input_at(spec.node(), "c") >= 0;
  if (has_other_c || (bias >= 0 && (step->is_gradient || !is_row_of_result(spec, bias)))) return std::nullopt;
  Product p = product_of(spec);
  merge_batches(p);
  // cuDNN supports rows of any length, but is fast only for whole vectors.
  if (p.y.batch.size() > 1 || p.alpha != 1 || p.n % kElements != 0 || p.k % kElements != 0) return std::nullopt;
  return ActivatedProduct{
      p, step->activation, step->is_gradient, bias, input_at(spec.node(), "at"), output_at(spec.node(), "kept")};
}

void add_library_forms(const NodeSpec& spec, const ActivatedProduct& p, std::vector<Form>* forms) {
  // The addresses of a run: x is in the place of y until the activation overwrites it, if nobody reads it.
  struct Places {
    const void* bias;
    void *y, *x;
  };
  const auto places = [p](const Launch& launch) -> Places {
    void* const y = launch.outputs[0];
    void* const x = p.is_gradient ? const_cast<void*>(launch.inputs[p.at]) : p.kept >= 0 ? launch.outputs[p.kept] : y;
    return {p.bias >= 0 ? launch.inputs[p.bias] : nullptr, y, x};
  };
  const ProductVector vector = p.bias >= 0 ? ProductVector::kBias : ProductVector::kNone;
  if (p.activation == Activation::kGeluTanh) {
    Product product = p.product;
    product.activation = p.is_gradient ? LibraryActivation::kGeluTanhGrad
                         : p.kept >= 0 ? LibraryActivation::kGeluTanhWithOperand
                                       : LibraryActivation::kGeluTanh;
    add_algorithms(spec, product, vector, "cuBLASLt, ", forms, [=](const LibraryProduct& library) -> Prepared {
      return {[=](const Launch& launch) {
                const auto [bias, y, x] = places(launch);
                library.run(launch, launch.inputs[0], launch.inputs[1], y, bias, launch.workspace, nullptr,
                            p.is_gradient || p.kept >= 0 ? x : nullptr);
              },
              library.workspace()};
    });
  }
  const int64_t vectors = num_elements(p.product.y.batch) * p.product.m * p.product.n / kElements;
  const auto activate = spec.out_type() == DType::kBFloat16
                            ? activation_kernel<BFloat16>(p.activation, p.is_gradient, vectors)
                            : activation_kernel<__half>(p.activation, p.is_gradient, vectors);
  add_algorithms(spec, p.product, vector, "activation apart, ", forms, [=](const LibraryProduct& library) -> Prepared {
    return {[=](const Launch& launch) {
              const auto [bias, y, x] = places(launch);
              library.run(launch, launch.inputs[0], launch.inputs[1], p.is_gradient ? y : x, bias, launch.workspace);
              activate(launch, x, y);
            },
            library.workspace()};
  });
}

}  // namespace onnx_train::cuda
