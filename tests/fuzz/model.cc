#include "onnx_passes/import/import.h"
#include "onnx_passes/io/loading.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void model(Input input) {
  try_to([&] {
    ModelMessage message = load_message(input.data(), input.size());
    try_to([&] { check_proto(with_contents(message)); });
    try_to([&] { to_message(from_message(message)); });
    import_model(std::move(message));
  });
}

}  // namespace onnx_train::fuzz
