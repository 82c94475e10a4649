#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/message.h"
#include "runtime/data/dataset.h"
#include "runtime/training/checkpoint.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void training_model(Input input) {
  try_to([&] {
    const Model model = onnx_train::training_model(load_message(input.data(), input.size()), "train.onnx");
    try_to([&] { checkpoint_position(model); });
    for (const EntryPoint& entry : model.entry_points) try_to([&] { entry_inputs(model, entry.name()); });
    to_message(model);
  });
}

}  // namespace onnx_train::fuzz
