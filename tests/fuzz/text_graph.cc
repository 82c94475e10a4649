#include "onnx_passes/import/import_steps.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/model.h"
#include "tests/fuzz/harness.h"
#include "tools/opt/pass_registry.h"

namespace onnx_train::fuzz {

void text_graph(Input input) {
  const std::string text = text_of(input);
  if (text.starts_with('#')) {
    PassSettings settings;
    try_to([&] { read_header(text, pass_options(&settings)); });
  }
  try_to([&] {
    const Model model = from_text(text.substr(0, text.find("\n---\n")));
    try_to([&] {
      for_each_graph(model.graph.get(), verify_nodes);
      infer_types(model.graph.get());
    });
    to_text(model);
  });
}

}  // namespace onnx_train::fuzz
