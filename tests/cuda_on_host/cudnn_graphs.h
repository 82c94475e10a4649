// The cuDNN graphs that the host executes, rebuilt from the attributes of their descriptors (cudnn.cc).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cudnn.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace cudnn_on_host {

// The attributes set on a descriptor: numbers, addresses, and copies of other descriptors.
struct Given {
  std::map<cudnnBackendAttributeName_t, std::vector<int64_t>> numbers;
  std::map<cudnnBackendAttributeName_t, std::vector<std::shared_ptr<Given>>> parts;

  int64_t number(cudnnBackendAttributeName_t name) const { return numbers.at(name).at(0); }
  const Given& part(cudnnBackendAttributeName_t name) const { return *parts.at(name).at(0); }
};

// A tensor of a plan with five axes. Missing axes have size 1 and precede the last two axes (of images and matrices) or
// the last three.
struct HostTensor {
  std::vector<int64_t> sizes, strides;
  cudnnDataType_t type;
  int64_t id;
  char* data = nullptr;

  explicit HostTensor(const Given& given)
      : sizes(given.numbers.at(CUDNN_ATTR_TENSOR_DIMENSIONS)),
        strides(given.numbers.at(CUDNN_ATTR_TENSOR_STRIDES)),
        type(static_cast<cudnnDataType_t>(given.number(CUDNN_ATTR_TENSOR_DATA_TYPE))),
        id(given.number(CUDNN_ATTR_TENSOR_UNIQUE_ID)) {
    for (auto* list : {&sizes, &strides}) {
      const auto leading = std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(list->size()) - 2);
      list->insert(list->begin() + leading, 5 - list->size(), 1);
    }
  }
  int64_t elements() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3] * sizes[4]; }
  int64_t element_bytes() const { return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_INT32 ? 4 : 2; }
  // From the first element to the end of the last one.
  int64_t bytes() const {
    int64_t last = 0;
    for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
    return (last + 1) * element_bytes();
  }
  // Calls f(i, address) for element i in row-major order.
  template <typename F>
  void for_each(const F& f) const {
    int64_t i = 0;
    for (int64_t a = 0; a < sizes[0]; ++a)
      for (int64_t b = 0; b < sizes[1]; ++b)
        for (int64_t z = 0; z < sizes[2]; ++z)
          for (int64_t y = 0; y < sizes[3]; ++y)
            for (int64_t x = 0; x < sizes[4]; ++x)
              f(i++, data + element_bytes() *
                                (a * strides[0] + b * strides[1] + z * strides[2] + y * strides[3] + x * strides[4]));
  }
  std::vector<double> load() const {
    std::vector<double> values(static_cast<size_t>(elements()));
    for_each([&](int64_t i, const char* from) {
      double& value = values[static_cast<size_t>(i)];
      switch (type) {
        case CUDNN_DATA_FLOAT: value = *reinterpret_cast<const float*>(from); break;
        case CUDNN_DATA_INT32: value = *reinterpret_cast<const int32_t*>(from); break;
        case CUDNN_DATA_BFLOAT16: value = __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(from)); break;
        default: value = __half2float(*reinterpret_cast<const __half*>(from));
      }
    });
    return values;
  }
  void store(const std::vector<double>& values) const {
    for_each([&](int64_t i, char* to) {
      const auto value = static_cast<float>(values[static_cast<size_t>(i)]);
      switch (type) {
        case CUDNN_DATA_FLOAT: *reinterpret_cast<float*>(to) = value; break;
        case CUDNN_DATA_BFLOAT16: *reinterpret_cast<__nv_bfloat16*>(to) = __float2bfloat16(value); break;
        default: *reinterpret_cast<__half*>(to) = __float2half(value);
      }
    });
  }
};

// Maps tensor ids to addresses, on the device or, for scalars, on the host.
using Addresses = std::map<int64_t, char*>;

// A convolution or one of its gradients; `run` maps the operands' elements to the result's, in row-major order.
struct Convolution {
  HostTensor operands[2], result;
  std::function<std::vector<double>(const std::vector<double>& first, const std::vector<double>& second)> run;
};

// Returns nothing for another operation.
std::optional<Convolution> convolution_of(const Given& operation);

// Returns a function that executes a graph of convolutions, element-wise operations, products and reductions; null for
// others. This call reads descriptors and scalars; the returned function reads and writes device memory.
std::function<void()> composite_work(const Given& graph, const Addresses& addresses);

}  // namespace cudnn_on_host
