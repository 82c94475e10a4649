#include <optional>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/expression.h"
#include "onnx_passes/table_metadata.h"
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

constexpr const char* kTable = ".csv";

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

// The first output whose rows are scores of the model's classes; null if there is none.
const Tensor* scores_of(const TensorMap& results, size_t classes, int64_t samples) {
  for (const auto& [name, tensor] : results) {
    if (classes > 0 && is_float(tensor.dtype()) && tensor.shape() == Shape{samples, static_cast<int64_t>(classes)})
      return &tensor;
  }
  return nullptr;
}

// "file,class,probability" for each sample, and the first of them as a table.
struct ClassTable {
  std::string csv = "file,class,probability\n", shown;

  ClassTable(const Dataset& data, const std::vector<std::string>& classes, const Tensor& scores) {
    constexpr int64_t kShown = 10;
    TextTable table("llr");
    int64_t row = 0;
    for (const PredictedClass& found : predicted_classes(scores)) {
      const std::string origin = data.origin(row), file = origin.empty() ? concat("sample ", row) : origin;
      const std::string& name = classes[static_cast<size_t>(found.label)];
      csv += concat(csv_field(file), ",", csv_field(name), ",", number_text(found.probability), "\n");
      if (row++ < kShown) table.add({file, name, concat(format_number(100 * found.probability), "%")});
    }
    shown = table.text(0, text_width());
    if (row > kShown) shown += concat("and ", row - kShown, " more\n");
  }
};

int run(const PredictArguments& arguments) {
  Session session(in_precision(load_any_model(arguments.model), arguments.dtype), session_options(arguments.runtime));
  DataNotes notes;
  const Dataset data =
      load_dataset(arguments.inputs, session.model(), "predict", ReadOptions{arguments.reading, {}, {}, {}}, &notes);
  const TensorMap results = predict(&session, data, arguments.batch_size);
  const std::vector<std::string> classes = classes_from_json(session.model().metadata(kClasses));
  const Tensor* scores = scores_of(results, classes.size(), data.num_samples());
  std::optional<ClassTable> table;
  if (scores) table.emplace(data, classes, *scores);
  print_notes(notes);
  if (arguments.output.ends_with(kTable)) {
    if (!table) {
      fail(arguments.model,
           " does not say the names of its classes, which fit records of pictures: write its outputs as .npz");
    }
    write_file(arguments.output, table->csv);
    print(table->shown);
    return 0;
  }
  write_arrays(arguments.output, results);
  std::string text = arguments.output + ":";
  for (const auto& [name, tensor] : results) {
    text += concat(" ", name, " ", onnx_train::name(tensor.dtype()), to_string(tensor.shape()));
  }
  print(wrap(text, text_width(), 0, 2) + "\n");
  if (table) print(table->shown);
  return 0;
}

}  // namespace

Subcommand predict_command() {
  auto a = std::make_shared<PredictArguments>();
  return {
      "predict", "Outputs of a model for given inputs",
      "  onnx-train predict model.onnx --inputs test.npz -o outputs.npz\n"
      "  onnx-train predict run/best.onnx --inputs test.csv -o outputs.npz --batch-size 256\n"
      "  onnx-train predict run/best.onnx --inputs pictures/ -o classes.csv",
      with_runtime_options(
          {{"MODEL", &a->model, "a forward model, a training model or a checkpoint", "FILE", true},
           {"--inputs,--data", &a->inputs, "the inputs: any data that fit takes, labels not needed", "PATH", true},
           {"-o,--output",
            {&a->output, file_with(std::vector<std::string>{".npz", ".safetensors", kTable})},
            "the .npz or .safetensors file to write; keys are output names. Or a .csv file: file, class, probability",
            "FILE",
            true},
           {"--batch-size", {&a->batch_size, kCount}, "samples at a time [128]", "N"},
           scale_option(&a->reading.scales),
           preprocess_option(&a->reading.preprocess),
           dtype_option(&a->dtype)},
          &a->runtime, &a->reading),
      [a] { return run(*a); }};
}

}  // namespace onnx_train
