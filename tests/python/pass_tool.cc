// Runs one pass on a file, so that tests/python can compare a model before and after on another runtime:
//     pass_tool round-trip|import|recognize|training-mode|simplify|flatten IN OUT [batch or entry]
#include <cstdio>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/recognize/recognize.h"
#include "onnx_passes/training/training_mode.h"

namespace onnx_train {
namespace {

Model run(const std::string& pass, onnx::ModelProto proto, const std::string& argument) {
  if (pass == "round-trip") {
    const std::string before = proto.SerializeAsString();
    Model model = from_proto(std::move(proto));
    onnx::ModelProto after;
    to_proto(model, &after);
    if (after.SerializeAsString() != before) fail("the model is not the same after a round trip");
    return model;
  }
  if (pass == "training-mode") {
    Model model = import_model(std::move(proto));
    training_mode({}).run(model);
    return model;
  }
  if (pass == "flatten") return flatten(from_proto(std::move(proto)), argument);
  Model model = import_model(std::move(proto), {.batch = argument});
  if (pass == "recognize") recognize({}).run(model);
  if (pass == "simplify" || pass == "recognize") simplify(model);
  return model;
}

}  // namespace
}  // namespace onnx_train

int main(int argc, char** argv) {
  using namespace onnx_train;
  if (argc < 4) return 2;
  try {
    const Model model = run(argv[1], load_proto(argv[2]), argc > 4 ? argv[4] : "");
    onnx::ModelProto proto;
    to_proto(model, &proto, {.all_types = true});
    check_proto(proto);
    save_proto(proto, argv[3]);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
