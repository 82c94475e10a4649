#include "tools/run_report/metrics_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "platform/lock.h"

namespace onnx_train {
namespace {

// A number, or nothing, which is NaN; JSON's null stands for what is not finite.
bool read_number(const char* at, const char* end, double* value) {
  *value = std::numeric_limits<double>::quiet_NaN();
  if (at == end || std::string_view(at, static_cast<size_t>(end - at)) == "null") return true;
  double number = 0;
  const auto [after, error] = std::from_chars(at, end, number);
  if (after != end || error == std::errc::invalid_argument) return false;
  if (error == std::errc() && std::isfinite(number)) *value = number;
  return true;
}

}  // namespace

void MetricsTable::clear() {
  offset_ = rows_ = damaged_ = 0;
  names_.clear();
  columns_.clear();
}

void MetricsTable::read_line(const char* at, const char* end) {
  if (at < end && end[-1] == '\r') --end;
  if (names_.empty()) {
    for (const char* comma = at; comma != end; at = comma + 1) {
      comma = std::find(at, end, ',');
      names_.emplace_back(at, comma);
      if (comma == end) break;
    }
    columns_.resize(names_.size());
    return;
  }
  row_.clear();
  for (bool more = true; more;) {
    const char* const comma = std::find(at, end, ',');
    double value = 0;
    if (row_.size() == names_.size() || !read_number(at, comma, &value)) {
      ++damaged_;
      return;
    }
    row_.push_back(value);
    more = comma != end;
    at = comma + 1;
  }
  if (row_.size() != names_.size() || std::isnan(row_[0])) {
    ++damaged_;
    return;
  }
  for (size_t i = 0; i < row_.size(); ++i) columns_[i].push_back(row_[i]);
  ++rows_;
}

bool MetricsTable::update() {
  const platform::File file = platform::open_to_read(path_);
  const auto status = file.is_open() ? file.status() : std::nullopt;
  if (!status || !status->is_regular) return false;
  if (status->number != file_ || status->size < offset_) clear();
  file_ = status->number;
  const size_t before = rows_;
  constexpr size_t kBlock = 1 << 20;
  std::string text;  // from `offset_`: lines that are not complete yet, and a block
  for (uint64_t end = offset_;;) {
    const size_t kept = text.size();
    text.resize(kept + kBlock);
    const std::ptrdiff_t got = file.read_some(end, kBlock, text.data() + kept);
    text.resize(kept + static_cast<size_t>(std::max<std::ptrdiff_t>(got, 0)));
    if (got <= 0) break;
    end += static_cast<uint64_t>(got);
    size_t done = 0;
    for (size_t line_end; (line_end = text.find('\n', std::max(done, kept))) != std::string::npos;
         done = line_end + 1) {
      read_line(text.data() + done, text.data() + line_end);
    }
    text.erase(0, done);
    offset_ += done;
  }
  return rows_ != before;
}

const std::vector<double>* MetricsTable::column(const std::string& name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  return found == names_.end() ? nullptr : &columns_[static_cast<size_t>(found - names_.begin())];
}

bool is_running(const std::string& folder) {
  const platform::File file = platform::open_to_read(folder + "/metrics.jsonl");
  return file.is_open() && platform::is_locked(file);
}

}  // namespace onnx_train
