#include "kernels/device.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr std::string_view kPrefix = "libonnx_train_", kSuffix = ".so";

std::atomic<Device*> chosen_device{nullptr};

// The folder of the library or program that contains this code.
std::filesystem::path module_folder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&Device::find), &info) == 0 || !info.dli_fname) return {};
  std::error_code error;
  const auto file = std::filesystem::canonical(info.dli_fname, error);
  return error ? std::filesystem::path() : file.parent_path();
}

bool is_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// The module and number that "NAME" or "NAME:N" stand for.
std::pair<std::string, int> parse(const std::string& name) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos) return {name, 0};
  int number = -1;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + colon + 1, end, number);
  const std::string module = name.substr(0, colon);
  if (error != std::errc() || stop != end || number < 0) {
    fail_as(ErrorCode::kDevice, "there is no device '", name, "': a number follows the colon, as in ", module, ":0");
  }
  return {module, number};
}

Device& load(const std::string& name, int number) {
  const std::filesystem::path file = module_folder() / concat(kPrefix, name, kSuffix);
  std::error_code error;
  if (!is_name(name) || !std::filesystem::exists(file, error)) {
    std::string all;
    for (const std::string& known : Device::names()) all += (all.empty() ? "" : ", ") + known;
    fail_as(ErrorCode::kDevice, "there is no device '", name, "' in this installation; there are: ", all);
  }
  // Never unloaded: devices live as long as the program.
  void* const module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module) {
    fail_as(ErrorCode::kDevice, "device '", name, "': ", dlerror(),
            "; install the library that is missing, or name its folder in LD_LIBRARY_PATH");
  }
  const auto make = reinterpret_cast<MakeDevice*>(dlsym(module, kMakeDevice));
  if (!make) fail_as(ErrorCode::kDevice, "device '", name, "': ", file.string(), " has no function ", kMakeDevice);
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
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(module_folder(), error)) {
    const std::string file = entry.path().filename();
    if (!file.starts_with(kPrefix) || !file.ends_with(kSuffix)) continue;
    names.push_back(file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size()));
  }
  std::sort(names.begin(), names.end());
  names.insert(names.begin(), "cpu");
  return names;
}

void check_device_number(const std::string& module, int number, int count) {
  if (number < count) return;
  const std::string last = count > 1 ? concat(" to ", module, ":", count - 1) : "";
  fail_as(ErrorCode::kDevice, "there is no device '", module, ":", number, "': this machine has ", count, ", ", module,
          ":0", last);
}

Device& default_device() {
  Device* device = chosen_device;
  return device ? *device : Device::cpu();
}

void set_default_device(Device& device) { chosen_device = &device; }

}  // namespace onnx_train
