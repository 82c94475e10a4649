// The metrics of a run folder: metrics.jsonl and metrics.csv with the same numbers, one line a step, epochs.jsonl with
// one an evaluation; evaluation.json with all that the best evaluation says, by class, too, for models with such
// metrics. Lines are written as they come; after resuming at step k, lines of later steps are gone and new
// ones follow. metrics.jsonl is locked while the log is open, by which other processes know that the run goes on; the
// system removes the lock when the process ends in whatever way. What cannot be read or written is an Error of the
// call.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/file.h"
#include "runtime/training/trainer.h"

namespace onnx_train {

// Takes what a training reports.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void add(const StepReport& report) = 0;
  virtual void add(const EvaluationReport& report) = 0;
};

class MetricsLog : public MetricsSink {
 public:
  // Keeps what the files in `folder` hold of steps up to `step`: 0 starts them anew. `classes` are the names of the
  // classes, if they have some, `metrics` those of each step (step_metrics), which have columns of their own.
  MetricsLog(const std::string& folder, int64_t step, std::vector<std::string> classes = {},
             const std::vector<std::string>& metrics = {});

  void add(const StepReport& report) override;
  void add(const EvaluationReport& report) override;

 private:
  // A file to which lines are added.
  struct Lines {
    Lines(const std::string& path, const std::string& kept);
    void add(const std::string& line);

    std::string path;
    File file;
  };

  std::vector<std::string> columns_;  // of metrics.csv
  const std::string best_;            // the path of evaluation.json
  const std::vector<std::string> classes_;
  std::optional<Lines> steps_, table_, epochs_;
};

// The file of a run's folder that holds the tables of the best evaluation.
inline constexpr const char* kBestEvaluation = "evaluation.json";

// Each table as a list, or a list of lists; null for what is not a number.
nlohmann::ordered_json to_json(const MetricTables& tables);
// One JSON object, without a newline.
std::string to_json(const StepReport& report);
std::string to_json(const EvaluationReport& report);

}  // namespace onnx_train
