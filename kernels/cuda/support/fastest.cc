#include "kernels/cuda/support/fastest.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "kernels/cuda/support/cache.h"
#include "kernels/cuda/support/stream.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

constexpr size_t kRounds = 10;  // each form's time is its least of this many

// Names the current device and its driver. The answer is kept, because the driver takes milliseconds for it.
const std::string& hardware() {
  static auto& names = *new std::map<int, std::string>;  // by device; fastest() calls from one thread at a time
  std::string& name = names[current_device()];
  if (name.empty()) {
    int driver = 0;
    cudaDeviceProp device = {};
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    check(cudaGetDeviceProperties(&device, current_device()), "cudaGetDeviceProperties");
    name = concat(device.name, "\n", driver);
  }
  return name;
}

std::string key_of(const NodeSpec& spec, const std::string& library, const std::vector<Form>& forms) {
  std::string key = concat(hardware(), " ", library, "\n", computation_of(spec));
  for (const Form& form : forms) key += form.name + "\n";
  return key;
}

// Memory for one run of a node; inputs are zeros.
class Operands {
 public:
  Operands(const Node& node, size_t workspace, const CudaStream& stream) : stream_(stream.handle()) {
    for (const Value* input : node.inputs()) inputs_.push_back(input ? add(bytes_of(input)) : nullptr);
    for (const Value* output : node.outputs()) outputs_.push_back(output ? add(bytes_of(output)) : nullptr);
    workspace_ = add(workspace);
    fault_ = static_cast<Fault*>(add(sizeof(Fault)));
  }

  static size_t bytes(const Node& node, size_t workspace) {
    size_t sum = workspace;
    for (const Value* input : node.inputs()) sum += bytes_of(input);
    for (const Value* output : node.outputs()) sum += bytes_of(output);
    return sum;
  }

  Launch launch(Stream* stream) const { return {inputs_.data(), outputs_.data(), workspace_, stream, fault_, 1}; }

 private:
  // 0 if the value is absent.
  static size_t bytes_of(const Value* value) {
    return value ? static_cast<size_t>(num_elements(value->type().shape())) * size_of(value->dtype()) : 0;
  }

  void* add(size_t bytes) {
    bytes = std::max<size_t>(bytes, 1);
    memory_.push_back(std::make_unique<DeviceMemory>(bytes));
    check(cudaMemsetAsync(memory_.back()->data(), 0, bytes, stream_), "cudaMemsetAsync");
    return memory_.back()->data();
  }

  const cudaStream_t stream_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  void* workspace_ = nullptr;
  Fault* fault_ = nullptr;
};

// Returns the number of the fastest form; nothing if there is too little memory.
std::optional<size_t> time(const NodeSpec& spec, const std::vector<Form>& forms) {
  size_t workspace = 0, free = 0, total = 0;
  for (const Form& form : forms) workspace = std::max(workspace, form.prepared.workspace);
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (Operands::bytes(spec.node(), workspace) > free / 2) return std::nullopt;
  CudaStream stream(current_device());
  const Operands operands(spec.node(), workspace, stream);
  const Launch launch = operands.launch(&stream);
  for (const Form& form : forms) form.prepared.run(launch);
  // The forms take turns, so that a change of the clock meets all of them.
  const std::vector<double> ends =
      stream.time(kRounds * forms.size(), [&](size_t i) { forms[i % forms.size()].prepared.run(launch); });
  std::vector<double> least(forms.size(), std::numeric_limits<double>::max());
  for (size_t i = 0; i < ends.size(); ++i) {
    double& of_form = least[i % forms.size()];
    of_form = std::min(of_form, ends[i] - (i == 0 ? 0 : ends[i - 1]));
  }
  const auto best = static_cast<size_t>(std::min_element(least.begin(), least.end()) - least.begin());
  return least[best] < (1 - kGain) * least[0] ? best : 0;
}

}  // namespace

bool are_choices_timed() {
  const char* value = std::getenv("ONNX_TRAIN_TIMED_CHOICES");
  return !value || std::string(value) != "off";
}

Prepared fastest(const NodeSpec& spec, const std::string& library, std::vector<Form> forms) {
  const auto made = [&](size_t i) {
    Prepared prepared = std::move(forms[i].prepared);
    prepared.form = forms[i].name;
    return prepared;
  };
  if (forms.size() == 1 || !are_choices_timed()) return made(0);
  // One thread at a time, so that none is in the time of another.
  static std::mutex mutex;
  static auto& chosen = *new std::map<std::string, std::string>;
  const std::lock_guard lock(mutex);
  const std::string key = key_of(spec, library, forms);
  std::string& name = chosen[key];
  if (name.empty()) name = read_cached("choice", key).value_or("");
  const auto find = [&] {
    return std::find_if(forms.begin(), forms.end(), [&](const Form& form) { return form.name == name; });
  };
  if (find() == forms.end()) {
    const std::optional<size_t> best = time(spec, forms);
    if (!best) {
      chosen.erase(key);  // there may be more memory next time
      return made(0);
    }
    name = forms[*best].name;
    write_cached("choice", key, name);
  }
  return made(static_cast<size_t>(find() - forms.begin()));
}

}  // namespace onnx_train::cuda
