#include "onnx_passes/adapt/adapter_spec.h"
#include "onnx_passes/adapt/test_time_augmentation.h"
#include "onnx_passes/loss/loss_expression.h"
#include "onnx_passes/metrics/metrics.h"
#include "onnx_passes/training/optimizer_spec.h"
#include "runtime/data/class_names.h"
#include "runtime/data/images/augment.h"
#include "runtime/data/images/files.h"
#include "runtime/data/preprocess.h"
#include "runtime/support/options.h"
#include "runtime/training/schedule.h"
#include "runtime/training/stop_target.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void option_texts(Input input) {
  const std::string text = text_of(input);
  try_to([&] { parse_loss(text); });
  try_to([&] { parse_metric(text); });
  try_to([&] { parse_optimizer(text); });
  try_to([&] { parse_adapter_text(text); });
  try_to([&] { parse_views(text); });
  try_to([&] { parse_curve(text); });
  try_to([&] { parse_stop_target(text); });
  try_to([&] { parse_bytes(text); });
  try_to([&] { parse_duration(text); });
  try_to([&] { Augment{text}; });
  try_to([&] { read_mask_values(text); });
  try_to([&] { classes_from_json(text); });
}

}  // namespace onnx_train::fuzz
