#include "runtime/data/files/safetensors.h"

#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void safetensors(Input input) {
  const std::string path = file_of(input, "x.safetensors");
  try_to([&] {
    std::map<std::string, std::string> metadata;
    for (const auto& [name, tensor] : read_safetensors(path, &metadata)) tensor.clone();
  });
}

}  // namespace onnx_train::fuzz
