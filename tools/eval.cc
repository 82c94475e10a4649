#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "onnx_passes/table_metadata.h"
#include "runtime/data/images/files.h"
#include "runtime/data/source.h"
#include "runtime/example_inputs.h"
#include "runtime/report_text.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/trainer.h"
#include "tools/report/class_tables.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct EvalArguments {
  std::string model, data, dtype = "float32";
  int64_t batch_size = 128;
  DataOptions reading;
  bool json = false;
  RuntimeOptions runtime;
};

int run(const EvalArguments& arguments) {
  Session session(in_precision(load_training_model(arguments.model), arguments.dtype),
                  session_options(arguments.runtime));
  DataNotes notes;
  const Dataset data =
      load_dataset(arguments.data, session.model(), "evaluate", ReadOptions{arguments.reading, {}, {}, {}}, &notes);
  const EvaluationResult result = evaluate(&session, data, arguments.batch_size);
  notes.insert(notes.end(), result.notes.begin(), result.notes.end());
  print_notes(notes);
  if (arguments.json) {
    nlohmann::json object(result.metrics);
    object.update(to_json(result.tables));
    if (!notes.empty()) object["notes"] = notes;
    std::printf("%s\n", object.dump().c_str());
    return 0;
  }
  TextTable table("lr");
  table.add({"samples", std::to_string(data.num_samples())});
  for (const auto& [name, value] : result.metrics) table.add({name, format_number(value)});
  const std::vector<std::string> classes = classes_from_json(session.model().metadata(kClasses));
  std::printf("%s%s", table.text(0, text_width()).c_str(),
              class_tables_text(result.tables, classes, text_width()).c_str());
  return 0;
}

}  // namespace

Subcommand eval_command() {
  auto a = std::make_shared<EvalArguments>();
  return {"eval", "Loss and metrics of a training model or checkpoint on data, as inference computes them",
          "  onnx-train eval run/best.onnx --data test.npz\n"
          "  onnx-train eval run/best.onnx --data mnist/ --json\n"
          "  onnx-train eval run/best.onnx --data cifar-10/ --tta flip\n"
          "Metrics besides the loss are those of build --metric: onnx-train build --help",
          with_runtime_options({{"MODEL", &a->model, "a training model or a checkpoint", "FILE", true},
                                {"--data", &a->data, "the data: see fit --help", "PATH", true},
                                {"--batch-size", {&a->batch_size, kCount}, "samples at a time [128]", "N"},
                                scale_option(&a->reading.scales),
                                preprocess_option(&a->reading.preprocess),
                                tta_option(&a->runtime),
                                dtype_option(&a->dtype),
                                {"--json", &a->json, "one JSON object instead of a table"}},
                               &a->runtime, &a->reading),
          [a] { return run(*a); }};
}

}  // namespace onnx_train
