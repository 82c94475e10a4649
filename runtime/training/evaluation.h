// Loss and metrics of a model on data, as inference computes them. The caller owns the session, which one thread uses
// at a time. Functions throw Error that names the samples for data that the model cannot use.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/loading/batch_source.h"
#include "runtime/training/metric_sums.h"

namespace onnx_train {

// A note for models that do not say what their means are over: of another program, or of an earlier version.
inline constexpr const char* kOverSamples =
    "the model does not say what its means count; batches count by their samples. Build it anew to count labels";

struct EvaluationResult {
  Metrics metrics;                 // by role or name; not a number where nothing counts
  MetricTables tables;             // what metrics say by class
  std::vector<std::string> notes;  // what a user should know of them: sentences
};

// Runs `evaluate` over one epoch of the data; the last batch may be smaller. Loss and accuracy are over all that counts
// in the data, whatever the batches (means.h), and so are metrics (metric_sums.h). Other scalar outputs that are means
// are weighted by the number of samples, sums are added (the metadata onnx_train.outputs tells which).
// `micro_batches`: how many each pipeline of the session's ranks takes at once.
EvaluationResult evaluate(Session* session, BatchSource* data, int micro_batches = 1);
EvaluationResult evaluate(Session* session, const Dataset& data, int64_t batch_size);

}  // namespace onnx_train
