#include "runtime/training/evaluation.h"

#include <cmath>
#include <numeric>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "runtime/training/means.h"

namespace onnx_train {
namespace {

const TensorMap& run_samples(Session* session, const BatchSource& data, int64_t first, int64_t count,
                             const TensorMap& inputs, int64_t batches) {
  try {
    return session->run(Entry::kEvaluate, inputs, batches);
  } catch (const Error& e) {
    const std::string fault = data.fault(first, count);
    if (!fault.empty()) fail_as(e.code(), "evaluation: ", fault);
    fail_as(e.code(), "evaluation: ", e.what(), "; ", data.describe(first, count));
  }
}

// Metrics of the loss and the accuracy, and what to say of them.
void add_means(const LossReader& reader, const LossMean& loss, const Mean& accuracy, EvaluationResult* result) {
  result->metrics[roles::kLoss] = loss.value();
  if (reader.has_accuracy()) result->metrics[roles::kAccuracy] = accuracy.value();
  if (!reader.knows_counts()) result->notes.emplace_back(kOverSamples);
  if (!loss.counts()) {
    result->notes.emplace_back(
        "nothing counts in the data: every label is ignored or has no weight, so there is no loss");
  } else if (!std::isfinite(loss.value())) {
    result->notes.push_back(concat("the loss is ", loss.value() != loss.value() ? "not a number" : "infinite",
                                   ": look at the data and at the model's weights"));
  }
}

}  // namespace

EvaluationResult evaluate(Session* session, BatchSource* data, int micro_batches) {
  const LossReader reader(*session, Entry::kEvaluate);
  MetricSums sums(session->model());
  LossMean loss;
  Mean accuracy;
  std::map<std::string, Mean> others;
  const auto add_batch = [&](const TensorMap& outputs, int64_t samples) {
    reader.add(outputs, samples, &loss, &accuracy);
    sums.add(outputs);
    for (const auto& [output, value] : outputs) {
      if (value.size() != 1 || reader.reads(output) || sums.reads(output)) continue;
      const std::string name = session->metric_name(Entry::kEvaluate, output),
                        kind = kind_of_output(session->model(), name);
      Mean& mean = others[name];
      if (kind == "last") mean = {};
      if (kind == "mean") {
        mean.add(value.at(0), static_cast<double>(samples));
      } else {
        mean = {mean.sum + value.at(0), 1};
      }
    }
  };
  TensorMap inputs;
  int64_t at = 0;
  const Topology& topology = session->topology();
  data->share_out(topology.rounds(int64_t{topology.groups()} * micro_batches));
  data->start(0, 0);
  session->draw_again(Entry::kEvaluate);
  for (;;) {
    const std::vector<int64_t> batches = data->next_round(&inputs);
    if (batches.empty()) break;
    const int64_t samples = std::accumulate(batches.begin(), batches.end(), int64_t{0});
    const TensorMap& outputs = run_samples(session, *data, at, samples, inputs, std::ssize(batches));
    for (size_t i = 0; i < batches.size(); ++i) add_batch(of_rank(*session, outputs, i), batches[i]);
    at += samples;
  }
  if (at == 0) fail_as(ErrorCode::kData, "the evaluation data has no batch");
  EvaluationResult result;
  for (const auto& [name, mean] : others) result.metrics[name] = mean.value();
  sums.finish(&result.metrics, &result.tables);
  if (reader.has_loss()) add_means(reader, loss, accuracy, &result);
  return result;
}

EvaluationResult evaluate(Session* session, const Dataset& data, int64_t batch_size) {
  DatasetBatches batches(&data, session->model(), batch_size);
  return evaluate(session, &batches);
}

}  // namespace onnx_train
