#include "kernels/cpu/support/choices.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "include/onnx_train/version.h"
#include "kernels/cpu/support/cpu_features.h"
#include "kernels/cpu/support/onednn.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/stored.h"
#include "kernels/device.h"
#include "onnx_passes/ir/error.h"
#include "platform/mapping.h"

namespace onnx_train::cpu {
namespace {

constexpr double kMostSeconds = 1, kMilliseconds = 10;
constexpr double kFewFlops = 4e6;  // which take about 20 microseconds

// What is used of an operand beyond so many bytes is zeros.
constexpr size_t kMostBytes = size_t{64} << 20;

// Calls f(S{}) for the floats that kernels store; else does nothing.
template <typename F>
void for_float(DType type, const F& f) {
  if (type == DType::kFloat) f(float{});
  if (type == DType::kDouble) f(double{});
  if (type == DType::kBFloat16) f(BFloat16{});
}

void fill_with_noise(const Launch&, DType type, int64_t n, uint32_t seed, void* to) {
  for_float(type, [&]<typename S>(S) {
    auto* const elements = static_cast<S*>(to);
    parallel_for(n, kElementGrain, [=](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        // Mixes the bits of a number ("murmur3", 32-bit finalizer).
        uint32_t x = static_cast<uint32_t>(i) + seed;
        x = (x ^ (x >> 16)) * 0x85ebca6bu;
        x = (x ^ (x >> 13)) * 0xc2b2ae35u;
        elements[i] =
            store<S>(static_cast<Computed<S>>(static_cast<int32_t>(x ^ (x >> 16))) * static_cast<Computed<S>>(0x1p-31));
      }
    });
  });
}

void set_bytes(const Launch&, void* to, int value, size_t bytes) { std::memset(to, value, bytes); }

double relative_difference(const Launch&, DType type, int64_t n, const void* x, const void* y) {
  double difference = 0, largest = 0;
  for_float(type, [&]<typename S>(S) {
    const auto *const a = static_cast<const S*>(x), *const b = static_cast<const S*>(y);
    for (int64_t i = 0; i < n; ++i) {
      const double p = load(a[i]), q = load(b[i]);
      if (std::isnan(q)) continue;
      largest = std::max(std::abs(q), largest);
      if (std::isnan(p)) {
        difference = NAN;
        break;
      }
      if (p != q) difference = std::max(std::abs(p - q), difference);
    }
  });
  return difference == 0 ? 0 : difference / largest;
}

void* allocate(size_t bytes) {
  void* const data = platform::map_zeros(bytes, /*reserved=*/false);
  if (!data) fail_as(ErrorCode::kMemory, "out of memory: ", bytes, " bytes to time a node in");
  return data;
}
void free(void* data, size_t bytes) { platform::unmap(data, bytes); }

// The processor's name and number, as Linux tells them; what it does not tell is left out.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string text;
  for (std::string line; std::getline(file, line) && !line.empty();) {
    for (const char* key :
         {"vendor_id", "cpu family", "model", "model name", "stepping", "CPU implementer", "CPU part"}) {
      const size_t length = std::strlen(key);
      if (line.starts_with(key) && line.find_first_not_of(" \t", length) == line.find(':'))
        text += line.substr(line.find(':') + 1);
    }
  }
  return text;
}

// Without the number of threads: ranks that have other shares of a machine choose alike.
const std::string& hardware() {
  static const std::string text = concat(processor(), ", ", name_of(isa()));
  return text;
}

std::string library() { return "onnx-train " ONNX_TRAIN_VERSION ", " + onednn_version(); }

}  // namespace

Prepared fastest(const NodeSpec& spec, const Sample& sample, double flops, std::vector<Way> ways) {
  std::erase_if(ways, [](const Way& way) { return !way.is_supported; });
  const auto rule = std::find_if(ways.begin(), ways.end(), [](const Way& way) { return way.is_preferred; });
  if (rule == ways.end()) fail(spec.node().label(), ": no kernel is preferred");
  if (flops < kFewFlops || ways.size() == 1) return rule->prepare();
  std::rotate(ways.begin(), rule, rule + 1);
  std::vector<Form> forms;
  for (const Way& way : ways) {
    forms.push_back(
        {way.name, [&way] { return std::optional(way.prepare()); }, [&way] { return std::optional(way.sample()); }});
  }
  const Track track = {&Device::cpu(),  "cpu",     hardware(),          kMostSeconds, kMilliseconds, /*must_keep=*/true,
                       fill_with_noise, set_bytes, relative_difference, allocate,     free};
  return onnx_train::fastest(track, spec, {library(), sample.text, std::min(sample.bytes, kMostBytes)}, forms);
}

}  // namespace onnx_train::cpu
