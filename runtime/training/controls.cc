#include "runtime/training/controls.h"

#include <charconv>

#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/roles.h"
#include "runtime/training/schedule.h"

namespace onnx_train {
namespace {

double shortest(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double number = 0;
  std::from_chars(text, end, number);
  return number;
}

}  // namespace

std::optional<double> built_control(const Model& model, const char* role) {
  for (const EntryPoint& entry : model.entry_points) {
    const Value* control = entry.input(role);
    if (!control || !control->is_initializer()) continue;
    const Tensor value = contents_of(*control);
    if (value.size() != 1) continue;
    // A model that was widened to float64 holds float32 numbers, too.
    const auto narrow = static_cast<float>(value.at(0));
    return narrow == value.at(0) ? shortest(narrow) : value.at(0);
  }
  return {};
}

double built_rate(const Model& model) { return built_control(model, roles::kLearningRate).value_or(Schedule().peak); }

}  // namespace onnx_train
