// The graphs of cuDNN that the host executes, from what their descriptors were given (cudnn.cc).
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

// What a descriptor was given: numbers and addresses, and other descriptors as they were then.
struct Given {
  std::map<cudnnBackendAttributeName_t, std::vector<int64_t>> numbers;
  std::map<cudnnBackendAttributeName_t, std::vector<std::shared_ptr<Given>>> parts;

  int64_t number(cudnnBackendAttributeName_t name) const { return numbers.at(name).at(0); }
  const Given& part(cudnnBackendAttributeName_t name) const { return *parts.at(name).at(0); }
};

// A tensor of a plan, of five axes: those that it lacks have size 1 and precede the last two, which are an image's or a
// matrix's, or the last three.
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
  // Calls f(i, address) for element i in row-major order.
  template <typename F>
  void for_each(const F& f) const {
    int64_t i = 0;
    const int64_t bytes = type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_INT32 ? 4 : 2;
    for (int64_t a = 0; a < sizes[0]; ++a)
      for (int64_t b = 0; b < sizes[1]; ++b)
        for (int64_t z = 0; z < sizes[2]; ++z)
          for (int64_t y = 0; y < sizes[3]; ++y)
            for (int64_t x = 0; x < sizes[4]; ++x)
              f(i++,
                data + bytes * (a * strides[0] + b * strides[1] + z * strides[2] + y * strides[3] + x * strides[4]));
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

// Device or, for scalars, host addresses by the tensors' numbers.
using Addresses = std::map<int64_t, char*>;

// A convolution or one of its gradients: the result's elements from those of the operands, in row-major order.
struct Convolution {
  HostTensor operands[2], result;
  std::function<std::vector<double>(const std::vector<double>& first, const std::vector<double>& second)> run;
};

// Nothing for another operation.
std::optional<Convolution> convolution_of(const Given& operation);

// What executes a graph, or null for one that the host does not have: of convolutions, element-wise operations,
// products and reductions. The function reads descriptors and scalars; the result reads and writes the device's memory.
std::function<void()> composite_work(const Given& graph, const Addresses& addresses);

}  // namespace cudnn_on_host
