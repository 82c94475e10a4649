#include <filesystem>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/onnx.h"
#include "runtime/onnxruntime/forward_model.h"
#include "runtime/onnxruntime/optimizer_model.h"
#include "runtime/onnxruntime/training_checkpoint.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void onnxruntime_training(Input input) {
  const auto read = [](const std::string& path) {
    OrtCheckpoint checkpoint = read_ort_checkpoint(path);
    for (const auto& [name, tensor] : checkpoint.trained) tensor.clone();
  };
  const std::string file = file_of(input, "ort_checkpoint");
  file_of(input, "ort_checkpoint.data");
  try_to([&] { read(file); });
  const auto saved = folder() / "ort_folder";
  for (const char* name : {"paramtrain_tensors.pbseq", "optim_group0_momentum0_tensors.pbseq",
                           "optim_group0_properties.pbseq", "custom_properties.pbseq"}) {
    std::filesystem::create_directories(saved);
    for (const auto& entry : std::filesystem::directory_iterator(saved)) std::filesystem::remove(entry.path());
    // One file of the kind alone, so that a fault of another one does not hide its own.
    file_of({}, "ort_folder/paramtrain_tensors.pbseq");
    file_of(input, concat("ort_folder/", name));
    try_to([&] { read(saved); });
  }
  try_to([&] {
    const ModelMessage message = load_message(input.data(), input.size());
    trained_names(message.proto.graph());
    try_to([&] { recover_optimizer(message.proto.graph(), "0.1"); });
    try_to([&] { recover_forward(message, &message, {}); });
    try_to([&] { recover_forward(without_gradients(message), &message, {}); });
  });
}

}  // namespace onnx_train::fuzz
