// Learning rates by step, from a text file: lines "step,lr" in the order of steps, which count from 0. A first line
// without numbers is a header; empty lines and those that start with # are left out. Pure functions; any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace onnx_train {

// Throws Error that names the file and the line.
std::vector<std::pair<double, double>> read_rate_table(const std::string& path);

// The rate at `step`, linear between two points; before the first and after the last one, theirs.
double interpolate(const std::vector<std::pair<double, double>>& points, double step);

}  // namespace onnx_train
