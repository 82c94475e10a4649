#include <algorithm>
#include <cstring>
#include <numeric>

#include "onnx_passes/ir/error.h"
#include "runtime/data/npz.h"
#include "runtime/data/source.h"
#include "runtime/example_inputs.h"
#include "runtime/format.h"
#include "runtime/session.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct PredictArguments {
  std::string model, inputs, output, dtype = "float32";
  int64_t batch_size = 128;
  std::vector<std::string> scales;
  RuntimeOptions runtime;
};

// Puts the first `samples` rows of a batch's output where its samples belong in the output of all. An output whose
// first dimension is not the batch is no matter of samples: the last batch's stands.
void place(const Tensor& output, int64_t batch, int64_t at, int64_t samples, int64_t all, Tensor* result) {
  if (output.shape().empty() || output.shape()[0] != batch) {
    *result = output.clone();
    return;
  }
  Shape shape = output.shape();
  shape[0] = all;
  if (result->empty()) *result = Tensor(output.dtype(), shape);
  if (result->shape() != shape) fail("an output changes its shape from batch to batch; give --batch-size ", all);
  const size_t row = output.bytes() / static_cast<size_t>(batch);
  std::memcpy(static_cast<char*>(result->data()) + static_cast<size_t>(at) * row, output.data(),
              static_cast<size_t>(samples) * row);
}

TensorMap predict(Session* session, const Dataset& data, int64_t batch_size) {
  const int64_t n = data.num_samples();
  const int64_t fixed = data.fixed_batch();
  const int64_t batch = fixed > 0 ? fixed : std::min(batch_size, n);
  TensorMap inputs, results;
  for (int64_t at = 0; at < n; at += batch) {
    const int64_t samples = std::min(batch, n - at);
    // A model of a fixed batch gets its last one filled up with copies of the last sample.
    std::vector<int64_t> rows(static_cast<size_t>(fixed > 0 ? batch : samples));
    std::iota(rows.begin(), rows.end(), at);
    for (int64_t& row : rows) row = std::min(row, n - 1);
    const auto count = static_cast<int64_t>(rows.size());
    data.gather(rows.data(), count, &inputs);
    for (const auto& [name, output] : session->run("predict", inputs)) {
      place(output, count, at, samples, n, &results[name]);
    }
  }
  return results;
}

int run(const PredictArguments& arguments) {
  Session session(in_precision(load_any_model(arguments.model), arguments.dtype), session_options(arguments.runtime));
  DataNotes notes;
  const Dataset data =
      load_dataset(arguments.inputs, session.model(), "predict", DataRole::kEvaluate, arguments.scales, &notes);
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
               scale_option(&a->scales),
               dtype_option(&a->dtype)},
              &a->runtime),
          [a] { return run(*a); }};
}

}  // namespace onnx_train
