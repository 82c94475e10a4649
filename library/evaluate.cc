// Evaluation and prediction of the C interface: over arrays, batches and files of the program.
#include "library/program_data.h"
#include "runtime/data/loading/prediction.h"

namespace onnx_train {
namespace {

// Keeps metrics for the program, and describes them.
void give_metrics(onnx_train_session* s, Metrics values, MetricTables tables, const onnx_train_metric** metrics,
                  size_t* count) {
  s->evaluated = std::move(values);
  s->metrics.clear();
  for (const auto& [name, value] : s->evaluated) s->metrics.push_back({name.c_str(), value});
  s->by_class = std::move(tables);
  s->tables = described(s->by_class);
  *metrics = s->metrics.data();
  *count = s->metrics.size();
}

// The data of onnx_train_evaluate and onnx_train_predict, and how they are to be read.
struct WholeData {
  WholeData(onnx_train_session* session, const onnx_train_data* given, const EntryName& entry,
            const onnx_train_option* options, size_t count, const onnx_train_observer* observer)
      : events(session, observer) {
    DataOptions reading;
    read_options(options, count,
                 {{"--batch-size", {&batch_size, kCount}, ""},
                  {"--scale", {&reading.scales, check_scale}, ""},
                  {"--preprocess", &reading.preprocess, ""}});
    const Model& model = session->session.model();
    const std::vector<InputSpec> inputs = entry_inputs(model, entry);
    std::string note;
    const Preprocess preprocess = preprocess_of(model, reading, inputs, &note);
    DataNotes notes;
    data = program_data(session, required(given, "the data"), inputs, preprocess, "", /*trains=*/false, "data", &notes);
    events.on_notes(notes);
    events.on_notes({note, reading.says_how() ? "" : hint_of(*given, data, session->session)});
  }

  ProgramEvents events;
  int64_t batch_size = 128;
  RunData data;
};

}  // namespace
}  // namespace onnx_train

using namespace onnx_train;

extern "C" {

onnx_train_status onnx_train_evaluate(onnx_train_session* session, const onnx_train_data* data,
                                      const onnx_train_option* options, size_t count,
                                      const onnx_train_observer* observer, const onnx_train_metric** metrics,
                                      size_t* num_metrics) {
  return in_session(session, [&](onnx_train_session& s) {
    required(metrics, "where the metrics go");
    required(num_metrics, "where their number goes");
    WholeData whole(&s, data, Entry::kEvaluate, options, count, observer);
    EvaluationResult result = evaluate(&s.session, whole.data.for_evaluation(s.session, whole.batch_size).get());
    whole.events.on_notes(result.notes);
    give_metrics(&s, std::move(result.metrics), std::move(result.tables), metrics, num_metrics);
  });
}

onnx_train_status onnx_train_session_metrics(onnx_train_session* session, const onnx_train_tensor* statistics,
                                             size_t count, const onnx_train_metric** metrics, size_t* num_metrics) {
  return in_session(session, [&](onnx_train_session& s) {
    required(metrics, "where the metrics go");
    required(num_metrics, "where their number goes");
    MetricSums sums(s.session.model());
    sums.add(views_of(statistics, count));
    Metrics values;
    MetricTables tables;
    sums.finish(&values, &tables);
    give_metrics(&s, std::move(values), std::move(tables), metrics, num_metrics);
  });
}

onnx_train_status onnx_train_session_metric_tables(onnx_train_session* session, const onnx_train_tensor** tables,
                                                   size_t* count) {
  return in_session(session, [&](onnx_train_session& s) {
    required(tables, "where the tables go") = s.tables.data();
    required(count, "where their number goes") = s.tables.size();
  });
}

onnx_train_status onnx_train_predict(onnx_train_session* session, const onnx_train_data* data,
                                     const onnx_train_option* options, size_t count,
                                     const onnx_train_observer* observer, const onnx_train_tensor** outputs,
                                     size_t* num_outputs) {
  return in_session(session, [&](onnx_train_session& s) {
    required(outputs, "where the outputs go");
    required(num_outputs, "where their number goes");
    const WholeData whole(&s, data, Entry::kPredict, options, count, observer);
    if (!whole.data.dataset) throw UsageError("a prediction takes arrays or files, no batches of the program");
    s.predicted = predict(&s.session, *whole.data.dataset, whole.batch_size);
    s.outputs = described(s.predicted);
    *outputs = s.outputs.data();
    *num_outputs = s.outputs.size();
  });
}
}
