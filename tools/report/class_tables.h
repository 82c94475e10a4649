// What metrics say by class (MetricTables), as text, as JSON and in a file of the run's folder. Pure functions, but for
// the one that writes; any thread.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/training/metric_sums.h"

namespace onnx_train {

// A table with a row for each class and a column for each metric, and confusion matrices of few classes; "" if there
// are neither. A class without a name has its number.
std::string class_tables_text(const MetricTables& tables, const std::vector<std::string>& classes, size_t width);

// Each table as a list, or a list of lists; null for what is not a number.
nlohmann::ordered_json to_json(const MetricTables& tables);

// "f1" of "f1_per_class".
std::string title_of_table(const std::string& name);

// The file of a run's folder that holds the tables of the best evaluation.
inline constexpr const char* kBestEvaluation = "evaluation.json";

}  // namespace onnx_train
