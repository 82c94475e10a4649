// Graphs of convolutions, element-wise operations, products and reductions, one operation after the other in float64. A
// tensor without storage, such as the probabilities of an attention, is rounded if the graph gives it 16 bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "tests/cuda_on_host/cudnn_graphs.h"

namespace cudnn_on_host {
namespace {

using Values = std::vector<double>;  // in row-major order

struct Operation {
  enum Kind { kElementwise, kProduct, kReduction, kReshape, kConvolution } kind;
  int64_t mode = 0;                // operator of element-wise operations and reductions
  int64_t axis = 0;                // axis of GEN_INDEX
  std::vector<HostTensor> inputs;  // x, b, t; dy, x of a gradient; or two factors
  HostTensor result;
  decltype(Convolution::run) convolve = nullptr;
};

using Formula = double (*)(double x, double b, double t);

double gelu(double x) { return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5))); }

double gelu_gradient(double dy, double x, double) {
  return dy * (0.5 * (1 + std::erf(x * std::sqrt(0.5))) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI));
}

// The tanh of the approximate GELU.
double tanh_of(double x) { return std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }

double gelu_tanh_gradient(double dy, double x, double) {
  const double t = tanh_of(x), slope = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope);
}

Formula formula_of(int64_t mode) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD: return [](double x, double b, double) { return x + b; };
    case CUDNN_POINTWISE_SUB: return [](double x, double b, double) { return x - b; };
    case CUDNN_POINTWISE_MUL: return [](double x, double b, double) { return x * b; };
    case CUDNN_POINTWISE_DIV: return [](double x, double b, double) { return x / b; };
    case CUDNN_POINTWISE_EXP: return [](double x, double, double) { return std::exp(x); };
    case CUDNN_POINTWISE_LOG: return [](double x, double, double) { return std::log(x); };
    case CUDNN_POINTWISE_CMP_GE: return [](double x, double b, double) { return x >= b ? 1.0 : 0.0; };
    case CUDNN_POINTWISE_BINARY_SELECT: return [](double x, double b, double t) { return t != 0 ? x : b; };
    case CUDNN_POINTWISE_RELU_BWD: return [](double dy, double x, double) { return x > 0 ? dy : 0; };
    case CUDNN_POINTWISE_GELU_FWD: return [](double x, double, double) { return gelu(x); };
    case CUDNN_POINTWISE_GELU_BWD: return gelu_gradient;
    case CUDNN_POINTWISE_GELU_APPROX_TANH_FWD:
      return [](double x, double, double) { return 0.5 * x * (1 + tanh_of(x)); };
    case CUDNN_POINTWISE_GELU_APPROX_TANH_BWD: return gelu_tanh_gradient;
    default: return nullptr;
  }
}

bool is_known(const Operation& operation) {
  switch (operation.kind) {
    case Operation::kElementwise: return operation.mode == CUDNN_POINTWISE_GEN_INDEX || formula_of(operation.mode);
    case Operation::kReduction:
      return operation.mode == CUDNN_REDUCE_TENSOR_ADD || operation.mode == CUDNN_REDUCE_TENSOR_MAX;
    default: return true;
  }
}

// Iterates over the coordinates of a shape's elements in row-major order.
class Place {
 public:
  explicit Place(const std::vector<int64_t>& sizes) : sizes_(sizes) {}
  void advance() {
    for (size_t axis = 5; axis-- > 0;) {
      if (++at_[axis] < sizes_[axis]) return;
      at_[axis] = 0;
    }
  }
  int64_t operator[](size_t axis) const { return at_[axis]; }
  // The row-major position of the element in a tensor that repeats along axes of size 1.
  size_t in(const std::vector<int64_t>& sizes) const {
    int64_t position = 0;
    for (size_t axis = 0; axis < 5; ++axis) position = position * sizes[axis] + (sizes[axis] == 1 ? 0 : at_[axis]);
    return static_cast<size_t>(position);
  }
  size_t offset(const std::vector<int64_t>& strides) const {
    int64_t offset = 0;
    for (size_t axis = 0; axis < 5; ++axis) offset += at_[axis] * strides[axis];
    return static_cast<size_t>(offset);
  }

 private:
  const std::vector<int64_t>& sizes_;
  std::array<int64_t, 5> at_ = {};
};

class Composite {
 public:
  // Adds an operation to run. Returns false if the host does not support it.
  bool add(const Given& given, const Addresses& addresses) {
    const auto tensor = [&](cudnnBackendAttributeName_t name) { return make_tensor(given.part(name), addresses); };
    std::unique_ptr<Operation> operation;
    if (given.parts.count(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)) {
      const Given& details = given.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
      const bool is_gradient = given.parts.count(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC) > 0;
      operation.reset(new Operation{
          Operation::kElementwise,
          details.number(CUDNN_ATTR_POINTWISE_MODE),
          0,
          {tensor(is_gradient ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC : CUDNN_ATTR_OPERATION_POINTWISE_XDESC)},
          tensor(is_gradient ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC : CUDNN_ATTR_OPERATION_POINTWISE_YDESC)});
      if (is_gradient) operation->inputs.push_back(tensor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
      for (const auto name : {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC}) {
        if (given.parts.count(name)) operation->inputs.push_back(tensor(name));
      }
      // The attribute counts four axes; tensors here have five.
      if (operation->mode == CUDNN_POINTWISE_GEN_INDEX) operation->axis = details.number(CUDNN_ATTR_POINTWISE_AXIS) + 1;
    } else if (given.parts.count(CUDNN_ATTR_OPERATION_MATMUL_DESC)) {
      operation.reset(
          new Operation{Operation::kProduct,
                        0,
                        0,
                        {tensor(CUDNN_ATTR_OPERATION_MATMUL_ADESC), tensor(CUDNN_ATTR_OPERATION_MATMUL_BDESC)},
                        tensor(CUDNN_ATTR_OPERATION_MATMUL_CDESC)});
    } else if (given.parts.count(CUDNN_ATTR_OPERATION_REDUCTION_DESC)) {
      const Given& details = given.part(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
      operation.reset(new Operation{Operation::kReduction,
                                    details.number(CUDNN_ATTR_REDUCTION_OPERATOR),
                                    0,
                                    {tensor(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)},
                                    tensor(CUDNN_ATTR_OPERATION_REDUCTION_YDESC)});
    } else if (given.parts.count(CUDNN_ATTR_OPERATION_RESHAPE_XDESC)) {
      operation.reset(new Operation{Operation::kReshape,
                                    0,
                                    0,
                                    {tensor(CUDNN_ATTR_OPERATION_RESHAPE_XDESC)},
                                    tensor(CUDNN_ATTR_OPERATION_RESHAPE_YDESC)});
    }
    if (const auto convolution = convolution_of(given)) {
      const auto& [operands, result, run] = *convolution;
      operation.reset(new Operation{Operation::kConvolution,
                                    0,
                                    0,
                                    {with_address(operands[0], addresses), with_address(operands[1], addresses)},
                                    with_address(result, addresses),
                                    run});
    }
    if (!operation || !is_known(*operation)) return false;
    operations_.push_back(std::move(*operation));
    return true;
  }

  void run() {
    for (const Operation& operation : operations_) {
      switch (operation.kind) {
        case Operation::kElementwise: write(operation.result, elementwise(operation)); break;
        case Operation::kProduct: write(operation.result, product(operation)); break;
        case Operation::kReduction: write(operation.result, reduction(operation)); break;
        case Operation::kReshape: write(operation.result, reshape(operation)); break;
        case Operation::kConvolution:
          write(operation.result, operation.convolve(read(operation.inputs[0]), read(operation.inputs[1])));
          break;
      }
    }
    values_ = scalars_;
  }

 private:
  // A tensor without an address has no storage.
  static HostTensor with_address(HostTensor tensor, const Addresses& addresses) {
    const auto found = addresses.find(tensor.id);
    if (found != addresses.end()) tensor.data = found->second;
    return tensor;
  }

  // Scalars are read immediately.
  HostTensor make_tensor(const Given& given, const Addresses& addresses) {
    HostTensor tensor = with_address(HostTensor(given), addresses);
    if (!tensor.data) return tensor;
    const auto by_value = given.numbers.find(CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    if (by_value != given.numbers.end() && by_value->second[0]) {
      values_[tensor.id] = scalars_[tensor.id] = tensor.load();
      tensor.data = nullptr;
    }
    return tensor;
  }

  Values read(const HostTensor& tensor) const { return tensor.data ? tensor.load() : values_.at(tensor.id); }

  void write(const HostTensor& tensor, Values values) {
    if (tensor.data) return tensor.store(values);
    if (tensor.type == CUDNN_DATA_BFLOAT16) {
      for (double& value : values) value = __bfloat162float(__float2bfloat16(static_cast<float>(value)));
    } else if (tensor.type == CUDNN_DATA_HALF) {
      for (double& value : values) value = __half2float(__float2half(static_cast<float>(value)));
    }
    values_[tensor.id] = std::move(values);
  }

  Values elementwise(const Operation& operation) const {
    Values inputs[3], result(static_cast<size_t>(operation.result.elements()));
    if (operation.mode != CUDNN_POINTWISE_GEN_INDEX) {
      for (size_t k = 0; k < operation.inputs.size(); ++k) inputs[k] = read(operation.inputs[k]);
    }
    Place place(operation.result.sizes);
    for (double& y : result) {
      double x[3] = {};
      for (size_t k = 0; k < operation.inputs.size() && !inputs[k].empty(); ++k)
        x[k] = inputs[k][place.in(operation.inputs[k].sizes)];
      y = operation.mode == CUDNN_POINTWISE_GEN_INDEX ? static_cast<double>(place[static_cast<size_t>(operation.axis)])
                                                      : formula_of(operation.mode)(x[0], x[1], x[2]);
      place.advance();
    }
    return result;
  }

  Values product(const Operation& operation) const {
    const HostTensor &a = operation.inputs[0], &b = operation.inputs[1], &c = operation.result;
    const Values x = read(a), y = read(b);
    const auto m = static_cast<size_t>(a.sizes[3]), k = static_cast<size_t>(a.sizes[4]),
               n = static_cast<size_t>(b.sizes[4]);
    Values result(static_cast<size_t>(c.elements()));
    for (size_t at = 0; at < result.size(); at += m * n) {
      const double *left = &x[at / n * k], *right = &y[at / m * k];
      for (size_t i = 0; i < m; ++i)
        for (size_t j = 0; j < k; ++j)
          for (size_t l = 0; l < n; ++l) result[at + i * n + l] += left[i * k + j] * right[j * n + l];
    }
    return result;
  }

  Values reduction(const Operation& operation) const {
    const bool adds = operation.mode == CUDNN_REDUCE_TENSOR_ADD;
    Values result(static_cast<size_t>(operation.result.elements()),
                  adds ? 0 : -std::numeric_limits<double>::infinity());
    Place place(operation.inputs[0].sizes);
    for (const double x : read(operation.inputs[0])) {
      double& y = result[place.in(operation.result.sizes)];
      y = adds ? y + x : x > y || x != x ? x : y;
      place.advance();
    }
    return result;
  }

  // Elements keep their places in memory.
  Values reshape(const Operation& operation) const {
    const HostTensor &from = operation.inputs[0], &to = operation.result;
    const Values x = read(from);
    std::map<size_t, double> memory;
    Place source(from.sizes), place(to.sizes);
    for (const double value : x) memory[source.offset(from.strides)] = value, source.advance();
    Values result(static_cast<size_t>(to.elements()));
    for (double& y : result) y = memory.at(place.offset(to.strides)), place.advance();
    return result;
  }

  std::vector<Operation> operations_;
  std::map<int64_t, Values> scalars_, values_;
};

}  // namespace

std::function<void()> composite_work(const Given& graph, const Addresses& addresses) {
  const auto composite = std::make_shared<Composite>();
  for (const auto& operation : graph.parts.at(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    if (!composite->add(*operation, addresses)) return nullptr;
  }
  return [composite] { composite->run(); };
}

}  // namespace cudnn_on_host
