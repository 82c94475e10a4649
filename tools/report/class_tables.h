// What metrics say by class (MetricTables), as text. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/training/metric_sums.h"

namespace onnx_train {

// A table with a row for each class and a column for each metric, and confusion matrices of few classes; "" if there
// are neither. A class without a name has its number.
std::string class_tables_text(const MetricTables& tables, const std::vector<std::string>& classes, size_t width);

// "f1" of "f1_per_class".
std::string title_of_table(const std::string& name);

}  // namespace onnx_train
