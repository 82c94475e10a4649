// cuDNN on the host. The library is the real one if scripts/bootstrap has installed it: it makes plans for an H200,
// whose properties are in h200.json, without a device. What needs a device is ours: the handle, and the execution of a
// plan, for which the descriptors that the backend has written are remembered. So wrong strides or padding are a wrong
// result. Without the library there is no cuDNN, as on a machine that lacks it; a line says so.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cudnn.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/support/cudnn_library.h"
#include "tests/cuda_on_host/gpu_on_host.h"

namespace {

void* real_function(const char* name) {
  static void* const library = [] {
    void* const found = dlopen(CUDNN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!found)
      std::fprintf(stderr, "cuDNN is not installed (scripts/bootstrap --cuda): convolutions run without it\n");
    return found;
  }();
  return library ? dlsym(library, name) : nullptr;
}

template <typename F>
F* real(const char* name) {
  return reinterpret_cast<F*>(real_function(name));
}
#define REAL(function) real<decltype(function)>(#function)

// What a descriptor was given: numbers and addresses, and other descriptors as they were then.
struct Given {
  std::map<cudnnBackendAttributeName_t, std::vector<int64_t>> numbers;
  std::map<cudnnBackendAttributeName_t, std::vector<std::shared_ptr<Given>>> parts;

  int64_t number(cudnnBackendAttributeName_t name) const { return numbers.at(name).at(0); }
  const Given& part(cudnnBackendAttributeName_t name) const { return *parts.at(name).at(0); }
};

// The callers hold the lock of cudnn_library(), but for destructors.
struct State {
  std::recursive_mutex mutex;
  std::map<cudnnBackendDescriptor_t, std::shared_ptr<Given>> descriptors;
  cudnnBackendDescriptor_t properties = nullptr;
  cudaStream_t stream = nullptr;
};

State& state() {
  static auto* the = new State;
  return *the;
}

cudnnStatus_t create(cudnnHandle_t* handle) {
  std::ifstream file(DEVICE_PROPERTIES);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  cudnnBackendDescriptor_t& properties = state().properties;
  const auto set = REAL(cudnnBackendSetAttribute);
  for (const cudnnStatus_t status :
       {REAL(cudnnBackendCreateDescriptor)(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &properties),
        set(properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<int64_t>(text.size()),
            text.data()),
        REAL(cudnnBackendFinalize)(properties)}) {
    if (status != CUDNN_STATUS_SUCCESS) return status;
  }
  *handle = reinterpret_cast<cudnnHandle_t>(&state());  // nobody but us reads it
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set_stream(cudnnHandle_t, cudaStream_t stream) {
  state().stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get_stream(cudnnHandle_t, cudaStream_t* stream) {
  *stream = state().stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t create_descriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  const std::lock_guard lock(state().mutex);
  const cudnnStatus_t status = REAL(cudnnBackendCreateDescriptor)(type, descriptor);
  if (status == CUDNN_STATUS_SUCCESS) state().descriptors[*descriptor] = std::make_shared<Given>();
  return status;
}

cudnnStatus_t destroy_descriptor(cudnnBackendDescriptor_t descriptor) {
  const std::lock_guard lock(state().mutex);
  state().descriptors.erase(descriptor);
  return REAL(cudnnBackendDestroyDescriptor)(descriptor);
}

void remember(Given* given, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
              const void* values) {
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* parts = static_cast<const cudnnBackendDescriptor_t*>(values);
    auto& of_name = given->parts[name];
    of_name.clear();
    for (int64_t i = 0; i < count; ++i) of_name.push_back(state().descriptors[parts[i]]);
  } else if (type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_VOID_PTR) {
    const auto* numbers = static_cast<const int64_t*>(values);
    given->numbers[name].assign(numbers, numbers + count);
  } else if (type == CUDNN_TYPE_DATA_TYPE) {
    given->numbers[name] = {*static_cast<const cudnnDataType_t*>(values)};
  }
}

// The handle, which names the device, is replaced by the device's properties.
cudnnStatus_t set_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  if (type == CUDNN_TYPE_HANDLE) return CUDNN_STATUS_SUCCESS;
  const std::lock_guard lock(state().mutex);
  const auto set = REAL(cudnnBackendSetAttribute);
  const cudnnStatus_t status = set(descriptor, name, type, count, values);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  remember(state().descriptors[descriptor].get(), name, type, count, values);
  if (name != CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) return status;
  return set(descriptor, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &state().properties);
}

// A configuration of an engine, which a plan is made of, belongs to the graph that the library was asked about.
cudnnStatus_t get_attribute(const cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t requested, int64_t* count, void* values) {
  const std::lock_guard lock(state().mutex);
  const cudnnStatus_t status = REAL(cudnnBackendGetAttribute)(descriptor, name, type, requested, count, values);
  if (status == CUDNN_STATUS_SUCCESS && name == CUDNN_ATTR_ENGINEHEUR_RESULTS && values) {
    const auto& graph = state().descriptors[descriptor]->parts.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    const auto* results = static_cast<const cudnnBackendDescriptor_t*>(values);
    for (int64_t i = 0; i < std::min(requested, *count); ++i)
      state().descriptors[results[i]]->parts[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = graph;
  }
  return status;
}

// A tensor of a plan, with one to three spatial axes after batch and channels.
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
    for (auto* list : {&sizes, &strides}) list->insert(list->begin() + 2, 5 - list->size(), 1);
  }
  int64_t elements() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3] * sizes[4]; }
  // Calls f(i, address) for element i in row-major order.
  template <typename F>
  void for_each(const F& f) const {
    int64_t i = 0;
    const int64_t bytes = type == CUDNN_DATA_FLOAT ? 4 : 2;
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

// The names of a convolution's attributes, which differ by direction, and the one that is computed: x, w or y.
struct Names {
  cudnnBackendAttributeName_t tensors[3], windows;
  int result;
};
constexpr Names kNames[] = {
    {{CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
     2},
    {{CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     0},
    {{CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     1}};

struct HostConvolution {
  HostTensor tensors[3];
  int result;
  std::vector<int64_t> begin, stride, dilation;

  HostConvolution(const Given& operation, const Names& names)
      : tensors{HostTensor(operation.part(names.tensors[0])), HostTensor(operation.part(names.tensors[1])),
                HostTensor(operation.part(names.tensors[2]))},
        result(names.result) {
    const Given& windows = operation.part(names.windows);
    begin = windows.numbers.at(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    stride = windows.numbers.at(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
    dilation = windows.numbers.at(CUDNN_ATTR_CONVOLUTION_DILATIONS);
    begin.insert(begin.begin(), 3 - begin.size(), 0);
    stride.insert(stride.begin(), 3 - stride.size(), 1);
    dilation.insert(dilation.begin(), 3 - dilation.size(), 1);
  }

  // The result's elements are sums of the products of the other two's, in float64.
  void run() const {
    std::vector<double> values[3];
    for (int i = 0; i < 3; ++i) {
      if (i == result) {
        values[i].assign(static_cast<size_t>(tensors[i].elements()), 0);
      } else {
        values[i] = tensors[i].load();
      }
    }
    double *const x = values[0].data(), *const w = values[1].data(), *const y = values[2].data();
    switch (result) {
      case 0: for_each_product([&](int64_t i, int64_t j, int64_t k) { x[i] += y[k] * w[j]; }); break;
      case 1: for_each_product([&](int64_t i, int64_t j, int64_t k) { w[j] += y[k] * x[i]; }); break;
      default: for_each_product([&](int64_t i, int64_t j, int64_t k) { y[k] += x[i] * w[j]; });
    }
    tensors[result].store(values[result]);
  }

 private:
  // Calls f with the positions in x, w and y of each product.
  template <typename F>
  void for_each_product(const F& f) const {
    const auto &xs = tensors[0].sizes, &ws = tensors[1].sizes, &ys = tensors[2].sizes;
    const int64_t ins = ws[1], outs = ws[0] / (xs[1] / ins);
    for (int64_t n = 0; n < xs[0]; ++n) {
      for (int64_t o = 0; o < ws[0]; ++o) {
        for (int64_t c = 0; c < ins; ++c) {
          const int64_t x_plane = n * xs[1] + o / outs * ins + c, w_plane = o * ins + c, y_plane = n * ys[1] + o;
          for_each_place([&](int64_t in, int64_t tap, int64_t out) {
            f(x_plane * xs[2] * xs[3] * xs[4] + in, w_plane * ws[2] * ws[3] * ws[4] + tap,
              y_plane * ys[2] * ys[3] * ys[4] + out);
          });
        }
      }
    }
  }

  // Calls f(position, tap, window) for the windows of one channel.
  template <typename F>
  void for_each_place(const F& f) const {
    const auto &xs = tensors[0].sizes, &ws = tensors[1].sizes, &ys = tensors[2].sizes;
    const auto at = [&](size_t axis, int64_t window, int64_t tap) {
      return window * stride[axis] + tap * dilation[axis] - begin[axis];
    };
    const auto inside = [&](size_t axis, int64_t position) { return position >= 0 && position < xs[axis + 2]; };
    int64_t tap = 0;
    for (int64_t kz = 0; kz < ws[2]; ++kz) {
      for (int64_t ky = 0; ky < ws[3]; ++ky) {
        for (int64_t kx = 0; kx < ws[4]; ++kx, ++tap) {
          for (int64_t oz = 0; oz < ys[2]; ++oz) {
            const int64_t z = at(0, oz, kz);
            for (int64_t oy = 0; inside(0, z) && oy < ys[3]; ++oy) {
              const int64_t y = at(1, oy, ky);
              for (int64_t ox = 0; inside(1, y) && ox < ys[4]; ++ox) {
                const int64_t x = at(2, ox, kx);
                if (inside(2, x)) f((z * xs[3] + y) * xs[4] + x, tap, (oz * ys[3] + oy) * ys[4] + ox);
              }
            }
          }
        }
      }
    }
  }
};

// A graph of one convolution. The workspace is filled: nothing else may be stored there.
cudnnStatus_t execute(cudnnHandle_t, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t variant_pack) {
  const std::lock_guard lock(state().mutex);
  const Given& graph = state()
                           .descriptors.at(plan)
                           ->part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
                           .part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const Given &operation = graph.part(CUDNN_ATTR_OPERATIONGRAPH_OPS), &pack = *state().descriptors.at(variant_pack);
  const auto& ids = pack.numbers.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto& addresses = pack.numbers.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  int64_t bytes = 0, count = 0;
  REAL(cudnnBackendGetAttribute)(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes);
  auto* const workspace = reinterpret_cast<char*>(pack.number(CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
  for (const Names& names : kNames) {
    if (!operation.parts.count(names.windows)) continue;
    HostConvolution convolution(operation, names);
    for (HostTensor& tensor : convolution.tensors) {
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] == tensor.id) tensor.data = reinterpret_cast<char*>(addresses[i]);
      }
      if (!tensor.data) return CUDNN_STATUS_BAD_PARAM;
    }
    const cudaError_t status = gpu_host::enqueue_launch(state().stream, nullptr, [convolution, workspace, bytes] {
      if (bytes > 0) std::memset(workspace, 0xff, static_cast<size_t>(bytes));
      convolution.run();
    });
    return status == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
  }
  return CUDNN_STATUS_NOT_SUPPORTED;
}

}  // namespace

namespace onnx_train::cuda {

void* cudnn_function(const char* name) {
  static const std::map<std::string, void*> ours = {
      {"cudnnCreate", reinterpret_cast<void*>(create)},
      {"cudnnSetStream", reinterpret_cast<void*>(set_stream)},
      {"cudnnGetStream", reinterpret_cast<void*>(get_stream)},
      {"cudnnBackendCreateDescriptor", reinterpret_cast<void*>(create_descriptor)},
      {"cudnnBackendDestroyDescriptor", reinterpret_cast<void*>(destroy_descriptor)},
      {"cudnnBackendSetAttribute", reinterpret_cast<void*>(set_attribute)},
      {"cudnnBackendGetAttribute", reinterpret_cast<void*>(get_attribute)},
      {"cudnnBackendExecute", reinterpret_cast<void*>(execute)}};
  void* const function = real_function(name);
  const auto found = ours.find(name);
  return function && found != ours.end() ? found->second : function;
}

}  // namespace onnx_train::cuda

// Timing functions that cudnn-frontend's search among plans would call.
extern "C" {
#undef cudaEventCreate
cudaError_t cudaDeviceSynchronize() { return cudaErrorNotSupported; }
cudaError_t cudaEventCreate(cudaEvent_t*) { return cudaErrorNotSupported; }
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) { return cudaErrorNotSupported; }
}
