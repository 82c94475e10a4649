// cuDNN on the host. The library is the real one if scripts/bootstrap has installed it: it makes plans for an H200,
// whose properties are in h200.json, without a device. This file replaces handles and the execution of plans, for which
// it records the attributes of descriptors; wrong strides or padding give a wrong result. Without the library, tests
// behave as on a machine that lacks it; a line says so.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/support/cudnn_library.h"
#include "tests/cuda_on_host/cudnn_graphs.h"
#include "tests/cuda_on_host/gpu_on_host.h"
#include "tests/cuda_on_host/runtime.h"

#ifdef __SANITIZE_ADDRESS__
// NVIDIA's libraries keep memory as long as the program runs.
extern "C" const char* __lsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier): its name
  return "leak:libcublasLt\nleak:libcudnn\nleak:libnvrtc\n";
}
#endif

namespace {

using cudnn_on_host::Addresses;
using cudnn_on_host::Given;

void* real_function(const char* name) {
  static void* const library = [] {
    dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL);
    void* const found = dlopen(CUDNN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!found)
      std::fprintf(stderr, "cuDNN is not installed (scripts/bootstrap --cuda): kernels of ours run in its place\n");
    return found;
  }();
  return library ? dlsym(library, name) : nullptr;
}

template <typename F>
F* real(const char* name) {
  return reinterpret_cast<F*>(real_function(name));
}
#define REAL(function) real<decltype(function)>(#function)

struct State {
  std::recursive_mutex mutex;
  std::map<cudnnBackendDescriptor_t, std::shared_ptr<Given>> descriptors;
  cudnnBackendDescriptor_t properties = nullptr;
};

// The host's handle. It belongs to the device that was current when it was made, and to one thread at a time.
struct Handle {
  int device = 0;
  cudaStream_t stream = nullptr;
};

Handle& at(cudnnHandle_t handle) { return *reinterpret_cast<Handle*>(handle); }

bool is_on_its_device(cudnnHandle_t handle) {
  int current = -1;
  return cudaGetDevice(&current) == cudaSuccess && at(handle).device == current;
}

State& state() {
  static auto* the = new State;
  return *the;
}

cudnnStatus_t read_properties() {
  const std::lock_guard lock(state().mutex);
  if (state().properties) return CUDNN_STATUS_SUCCESS;
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
  return CUDNN_STATUS_SUCCESS;
}

// Handles are never destroyed, like those of the library on a device.
cudnnStatus_t create(cudnnHandle_t* handle) {
  if (const cudnnStatus_t status = read_properties(); status != CUDNN_STATUS_SUCCESS) return status;
  static auto& all = *new std::list<Handle>;
  const std::lock_guard lock(state().mutex);
  *handle = reinterpret_cast<cudnnHandle_t>(&all.emplace_back());
  return cudaGetDevice(&at(*handle).device) == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
  if (!is_on_its_device(handle)) return CUDNN_STATUS_BAD_PARAM;
  at(handle).stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get_stream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = at(handle).stream;
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
  } else if (type == CUDNN_TYPE_BOOLEAN) {
    given->numbers[name] = {*static_cast<const bool*>(values)};
  } else if (type == CUDNN_TYPE_DATA_TYPE || type == CUDNN_TYPE_POINTWISE_MODE ||
             type == CUDNN_TYPE_REDUCTION_OPERATOR_TYPE) {
    given->numbers[name] = {*static_cast<const int*>(values)};
  }
}

// Ignores handles, which need a device; heuristics get the device's properties instead.
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

// An engine configuration, of which a plan is made, belongs to the graph that the heuristics were asked about.
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

// Whether all tensors of a graph, including those of nested descriptors, are in device memory as their descriptors say:
// all of their elements, at an address of the declared alignment. Host scalars are elsewhere.
bool is_placed(const Given& given, const Addresses& addresses) {
  const auto alignment = given.numbers.find(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  if (alignment != given.numbers.end()) {
    const auto by_value = given.numbers.find(CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    const auto address = addresses.find(given.number(CUDNN_ATTR_TENSOR_UNIQUE_ID));
    if (address == addresses.end() || (by_value != given.numbers.end() && by_value->second[0])) return true;
    const int64_t bytes = cudnn_on_host::HostTensor(given).bytes();
    return reinterpret_cast<uintptr_t>(address->second) % static_cast<uintptr_t>(alignment->second[0]) == 0 &&
           gpu_host::is_device_memory(address->second, static_cast<size_t>(bytes));
  }
  for (const auto& [name, parts] : given.parts) {
    for (const auto& part : parts) {
      if (part && !is_placed(*part, addresses)) return false;
    }
  }
  return true;
}

// The alignment that tensor cores need. The library cannot require more, because cudnn-frontend stores its own tensors
// before the library's workspace.
constexpr uintptr_t kWorkspaceAlignment = 16;

// Fills the workspace, so that a test fails if other data is stored there.
cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t variant_pack) {
  const std::lock_guard lock(state().mutex);
  if (!is_on_its_device(handle)) return CUDNN_STATUS_BAD_PARAM;
  const Given& graph = state()
                           .descriptors.at(plan)
                           ->part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
                           .part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const Given& pack = *state().descriptors.at(variant_pack);
  const auto& ids = pack.numbers.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto& pointers = pack.numbers.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  Addresses addresses;
  for (size_t i = 0; i < ids.size(); ++i) addresses[ids[i]] = reinterpret_cast<char*>(pointers[i]);
  int64_t bytes = 0, count = 0;
  REAL(cudnnBackendGetAttribute)(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes);
  auto* const workspace = reinterpret_cast<char*>(pack.number(CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
  if (bytes > 0 && (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0 ||
                    !gpu_host::is_device_memory(workspace, static_cast<size_t>(bytes))))
    return CUDNN_STATUS_BAD_PARAM;
  if (!is_placed(graph, addresses)) return CUDNN_STATUS_BAD_PARAM;
  const std::function<void()> work = cudnn_on_host::composite_work(graph, addresses);
  if (!work) return CUDNN_STATUS_NOT_SUPPORTED;
  const cudaError_t status = gpu_host::enqueue_launch(at(handle).stream, nullptr, {}, {}, 0, [=] {
    if (bytes > 0) std::memset(workspace, 0xff, static_cast<size_t>(bytes));
    work();
  });
  return status == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
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

// cudnn-frontend's own search among plans, and its log, would call these functions.
extern "C" {
#undef cudaEventCreate
cudaError_t cudaDeviceSynchronize() { return cudaErrorNotSupported; }
cudaError_t cudaEventCreate(cudaEvent_t*) { return cudaErrorNotSupported; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes*, const void*) { return cudaErrorNotSupported; }
}
