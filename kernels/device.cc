#include "kernels/device.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <map>
#include <mutex>

#include "kernels/modules.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

std::atomic<Device*> chosen_device{nullptr};

// The module and number that "NAME" or "NAME:N" stand for.
std::pair<std::string, int> parse(const std::string& name) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos) return {name, 0};
  int number = -1;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + colon + 1, end, number);
  const std::string module = name.substr(0, colon);
  if (error != std::errc() || stop != end || number < 0) {
    fail_as(ErrorCode::kNoDevice, "there is no device '", name, "': a number follows the colon, as in ", module, ":0");
  }
  return {module, number};
}

Device& load(const std::string& name, int number) {
  const std::vector<std::string> names = Device::names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    std::string all;
    for (const std::string& known : names) all += (all.empty() ? "" : ", ") + known;
    fail_as(ErrorCode::kNoDevice, "there is no device '", name, "' in this installation; there are: ", all);
  }
  const auto make = reinterpret_cast<MakeDevice*>(module_function(name, kMakeDevice, concat("device '", name, "'")));
  return *make(number);
}

}  // namespace

std::vector<double> Stream::time(size_t count, const std::function<void(size_t)>& enqueue) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> ends;
  synchronize();
  const Clock::time_point start = Clock::now();
  for (size_t i = 0; i < count; ++i) {
    enqueue(i);
    synchronize();
    ends.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  return ends;
}

Device& Device::find(const std::string& name) {
  const auto [module, number] = parse(name);
  if (module == "cpu") {
    check_device_number(module, number, 1);
    return cpu();
  }
  static std::mutex mutex;
  static std::map<std::pair<std::string, int>, Device*> loaded;
  const std::lock_guard lock(mutex);
  Device*& device = loaded[{module, number}];
  if (!device) device = &load(module, number);
  return *device;
}

std::vector<std::string> Device::names() {
  std::vector<std::string> names = module_names();
  for (const char* const transport : {kGlooModule, kMpiModule}) std::erase(names, transport);
  names.insert(names.begin(), "cpu");
  return names;
}

void* Device::allocate_host(size_t /*bytes*/) {
  fail_as(ErrorCode::kUsage, "kernels of ", name(), " do not use the host's memory in place");
}

void check_device_number(const std::string& module, int number, int count) {
  if (number < count) return;
  const std::string last = count > 1 ? concat(" to ", module, ":", count - 1) : "";
  fail_as(ErrorCode::kNoDevice, "there is no device '", module, ":", number, "': this machine has ", count, ", ",
          module, ":0", last);
}

Device& default_device() {
  Device* device = chosen_device;
  return device ? *device : Device::cpu();
}

void set_default_device(Device& device) { chosen_device = &device; }

}  // namespace onnx_train
