#include "onnx_passes/ir/error.h"
#include "runtime/data/npz.h"
#include "runtime/data/prediction.h"
#include "runtime/data/source.h"
#include "runtime/example_inputs.h"
#include "runtime/report_text.h"
#include "runtime/session.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct PredictArguments {
  std::string model, inputs, output, dtype = "float32";
  int64_t batch_size = 128;
  DataOptions reading;
  RuntimeOptions runtime;
};

int run(const PredictArguments& arguments) {
  Session session(in_precision(load_any_model(arguments.model), arguments.dtype), session_options(arguments.runtime));
  DataNotes notes;
  const Dataset data = load_dataset(arguments.inputs, session.model(), "predict", arguments.reading, &notes);
  const TensorMap results = predict(&session, data, arguments.batch_size);
  write_npz(arguments.output, results);
  print_notes(notes);
  std::string text = arguments.output + ":";
  for (const auto& [name, tensor] : results) {
    text += concat(" ", name, " ", onnx_train::name(tensor.dtype()), to_string(tensor.shape()));
  }
  print(wrap(text, text_width(), 0, 2) + "\n");
  return 0;
}

}  // namespace

Subcommand predict_command() {
  auto a = std::make_shared<PredictArguments>();
  return {"predict", "Outputs of a model for given inputs",
          "  onnx-train predict model.onnx --inputs test.npz -o outputs.npz\n"
          "  onnx-train predict run/best.onnx --inputs test.csv -o outputs.npz --batch-size 256",
          with_runtime_options(
              {{"MODEL", &a->model, "a forward model, a training model or a checkpoint", "FILE", true},
               {"--inputs,--data", &a->inputs, "the inputs: any data that fit takes, labels not needed", "PATH", true},
               {"-o,--output",
                {&a->output, file_with(".npz")},
                "the .npz file to write; keys are output names",
                "FILE",
                true},
               {"--batch-size", {&a->batch_size, kCount}, "samples at a time [128]", "N"},
               scale_option(&a->reading.scales), preprocess_option(&a->reading.preprocess),
               dtype_option(&a->dtype)},
              &a->runtime),
          [a] { return run(*a); }};
}

}  // namespace onnx_train
