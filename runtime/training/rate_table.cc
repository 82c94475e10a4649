#include "runtime/training/rate_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "onnx_passes/io/file.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr size_t kLongestLine = 1000, kMostLines = 10'000'000;

// Reads a number and the spaces around it; false if there is none.
bool take_number(const char** at, const char* end, double* value) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (*at < end && is_space(**at)) ++*at;
  const auto [after, error] = std::from_chars(*at, end, *value);
  if (error != std::errc()) return false;
  *at = after;
  while (*at < end && is_space(**at)) ++*at;
  return true;
}

bool read_point(const std::string& line, std::pair<double, double>* point) {
  const char *at = line.data(), *end = at + line.size();
  if (!take_number(&at, end, &point->first) || at == end || *at++ != ',') return false;
  return take_number(&at, end, &point->second) && at == end;
}

}  // namespace

std::vector<std::pair<double, double>> read_rate_table(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) fail_as(ErrorCode::kFile, path, " is no file of lines step,lr");
  std::istringstream file(read_file(path));
  std::vector<std::pair<double, double>> points;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    const auto refuse = [&](const auto&... why) { fail_as(ErrorCode::kData, path, ", line ", number, ": ", why...); };
    if (line.size() > kLongestLine || number > kMostLines) refuse("too long for lines step,lr");
    if (line.find_first_not_of(" \t\r") == std::string::npos || line[0] == '#') continue;
    std::pair<double, double> point;
    if (!read_point(line, &point)) {
      const bool header = points.empty() && line.find_first_of("0123456789") == std::string::npos;
      if (!header) refuse("expected step,lr, found '", line, "'");
      continue;
    }
    if (!(point.first >= 0) || !std::isfinite(point.first))
      refuse("step ", point.first, " is no step; they count from 0");
    if (!(point.second >= 0) || !std::isfinite(point.second)) refuse("rate ", point.second, " is not 0 or more");
    if (!points.empty() && point.first <= points.back().first)
      refuse("step ", point.first, " does not come after ", points.back().first);
    points.push_back(point);
  }
  if (points.empty()) fail_as(ErrorCode::kData, path, " has no line step,lr");
  return points;
}

double interpolate(const std::vector<std::pair<double, double>>& points, double step) {
  const auto after =
      std::upper_bound(points.begin(), points.end(), step, [](double s, const auto& point) { return s < point.first; });
  if (after == points.begin()) return points.front().second;
  const auto& [left, rate] = *std::prev(after);
  if (after == points.end()) return rate;
  return rate + (after->second - rate) * ((step - left) / (after->first - left));
}

}  // namespace onnx_train
