#include <cmath>
#include <cstdio>
#include <numeric>

#include <nlohmann/json.hpp>

#include "onnx_passes/model/table_metadata.h"
#include "runtime/data/class_names.h"
#include "runtime/data/images/files.h"
#include "runtime/data/loading/source.h"
#include "runtime/data/texts/packing.h"
#include "runtime/models/example_inputs.h"
#include "runtime/runs/metrics_log.h"
#include "runtime/support/report_text.h"
#include "runtime/training/default_build.h"
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
  int64_t limit = 0;
  bool json = false;
  SessionSettings runtime;
  BuildSettings build;  // of a forward model: --loss, --metric
};

// The model, or one that evaluates a forward model; `notes` then says by which loss.
Model load(const EvalArguments& a, DataNotes* notes) {
  BuildSettings settings = a.build;
  settings.import.adapt.document_mask = settings.import.adapt.document_mask || packs(a.reading.packing);
  DefaultBuild found = load_or_build(
      a.model, settings,
      [&](const Model& forward) {
        return guess_loss(forward, a.data, ReadOptions{a.reading, DataRole::kEvaluate, {}, {}});
      },
      [&](const Model& forward) {
        return load_dataset(a.data, entry_inputs(forward, Entry::kPredict), DataRole::kEvaluate, {},
                            ReadOptions{a.reading, {}, {}, {}});
      },
      BuildFor::kEvaluation);
  const bool is_asked = !a.build.build.loss.empty() || !a.build.build.metrics.empty();
  if (!found.is_built && is_asked) {
    throw UsageError(
        concat(a.model,
               " is a training model, which has its loss and metrics: leave out --loss and --metric, or evaluate its "
               "inference model: onnx-train export ",
               shell_quoted(a.model), " -o model.onnx, then onnx-train eval model.onnx"));
  }
  if (found.is_built && !found.why.empty())
    notes->push_back(concat(a.model, " is a forward model: loss ", found.loss, " (", found.why, ")"));
  if (!found.sizes.empty()) notes->push_back(found.sizes);
  return std::move(found.model);
}

// All samples, or the first of them.
Dataset limited(Dataset data, int64_t limit) {
  if (limit == 0 || limit >= data.num_samples()) return data;
  std::vector<int64_t> rows(static_cast<size_t>(limit));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  return data.select(rows);
}

int run(const EvalArguments& arguments) {
  DataNotes notes;
  Session session(in_precision(load(arguments, &notes), arguments.dtype), options_of_session(arguments.runtime));
  const ReadOptions reading{arguments.reading, {}, {}, {}};
  const Dataset data =
      limited(load_dataset(arguments.data, session.model(), Entry::kEvaluate, reading, &notes), arguments.limit);
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
  const std::vector<std::string> classes = classes_from_json(session.model().metadata(kClassNames));
  std::printf("%s%s", table.text(0, text_width()).c_str(),
              class_tables_text(result.tables, classes, text_width()).c_str());
  return 0;
}

}  // namespace

Subcommand eval_command() {
  auto a = std::make_shared<EvalArguments>();
  a->build.build.loss.clear();  // what fits the data
  return {"eval", "Loss and metrics of a model on data, as inference computes them",
          "  onnx-train eval run/best.onnx --data test.npz\n"
          "  onnx-train eval run/best.onnx --data mnist/ --json\n"
          "  onnx-train eval run/best.onnx --data cifar-10/ --tta flip\n"
          "  onnx-train eval model.onnx --data test.npz --loss cross_entropy --metric f1\n"
          "Metrics besides the loss are those of build --metric: onnx-train build --help",
          with_session_options(
              joined({{"MODEL", &a->model, "a training model, a checkpoint or a forward model", "FILE", true},
                      {"--data", &a->data, "the data: see fit --help", "PATH", true},
                      {"--limit", {&a->limit, kCount}, "the first N samples of the data alone [all]", "N"},
                      {"--batch-size", {&a->batch_size, kCount}, "samples at a time [128]", "N"},
                      scale_option(&a->reading.scales),
                      preprocess_option(&a->reading.preprocess),
                      tta_option(&a->runtime),
                      seed_option(&a->runtime),
                      dtype_option(&a->dtype),
                      {"--json", &a->json, "one JSON object instead of a table"}},
                     options_of_forward(&a->build, {"loss", "metric"})),
              &a->runtime, &a->reading),
          [a] { return run(*a); }};
}

}  // namespace onnx_train
