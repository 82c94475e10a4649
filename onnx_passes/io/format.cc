#include "onnx_passes/io/format.h"

#include <algorithm>
#include <charconv>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

int version_of(const std::string& text) {
  int version = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, version);
  if (error != std::errc() || stop != end || version < 1)
    fail_as(ErrorCode::kFile, "its metadata say ", kFormatKey, " '", text, "', which is no version of this format");
  return version;
}

}  // namespace

std::span<const Upgrade> upgrades() { return {}; }

void upgrade(onnx::ModelProto* model, std::span<const Upgrade> steps, int newest) {
  for (auto& entry : *model->mutable_metadata_props()) {
    if (entry.key() != kFormatKey) continue;
    int version = version_of(entry.value());
    if (version > newest) {
      fail_as(ErrorCode::kFile, "its format has version ", version, ", and this onnx-train reads up to ", newest,
              "; use the onnx-train that wrote it, or a newer one");
    }
    for (; version < newest; ++version) {
      const auto step = std::find_if(steps.begin(), steps.end(), [=](const Upgrade& u) { return u.from == version; });
      if (step == steps.end())
        fail_as(ErrorCode::kFile, "its format has version ", version, ", from which nothing leads to ", version + 1);
      step->run(model);
    }
    entry.set_value(std::to_string(newest));
    return;
  }
}

}  // namespace onnx_train
