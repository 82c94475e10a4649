// The numbers of a run, read from metrics.csv while or after it trains. `update` reads what was added since it was last
// called; a file that has been replaced, as a resumed run does, is read anew. The owner uses it from one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onnx_train {

class MetricsTable {
 public:
  explicit MetricsTable(std::string path) : path_(std::move(path)) {}

  // Returns whether there are new rows. A file that is missing or empty has none.
  bool update();

  size_t rows() const { return rows_; }
  // Lines whose numbers cannot be read; they are left out.
  size_t damaged() const { return damaged_; }
  const std::vector<std::string>& names() const { return names_; }
  // Null if there is no such column. Values that are missing or not finite are NaN.
  const std::vector<double>* column(const std::string& name) const;

 private:
  void clear();
  void read_line(const char* at, const char* end);

  const std::string path_;
  uint64_t file_ = 0, offset_ = 0;  // the inode, and the bytes of it that have been read
  size_t rows_ = 0, damaged_ = 0;
  std::vector<std::string> names_;
  std::vector<std::vector<double>> columns_;
  std::vector<double> row_;
};

// Whether a process trains in this folder now (the lock of runtime/runs/metrics_log.h).
bool is_running(const std::string& folder);

}  // namespace onnx_train
