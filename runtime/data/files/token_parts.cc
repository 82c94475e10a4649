// What is said of several sources of tokens.
#include <cmath>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"
#include "runtime/data/files/tokens.h"

namespace onnx_train {
namespace {

// "books.bin: 60% of an epoch, each of its 10 blocks 3 times".
std::string share_text(const DataPart& part, double weights, int64_t rows, const char* rows_are) {
  const double drawn = static_cast<double>(rows) * (part.weight / weights);
  const auto places = [](double x) { return number_text(std::round(x * 100) / 100); };
  return concat(part.name, ": ", places(100 * part.weight / weights), "% of an epoch, each of its ", part.rows, " ",
                rows_are, part.rows == 1 ? " " : "s ", places(drawn / static_cast<double>(part.rows)), " times");
}

}  // namespace

std::string names_of(const std::vector<std::string>& paths) {
  return paths.size() == 1 ? paths[0] : concat(paths.size(), " files, ", paths[0], " the first");
}

void add_cache_notes(const std::vector<TokenShard>& shards, DataArrays* data) {
  const std::string* first = nullptr;
  int64_t others = 0;
  for (const TokenShard& shard : shards) {
    if (shard.note.empty()) continue;
    first ? static_cast<void>(++others) : static_cast<void>(first = &shard.note);
  }
  if (first)
    data->notes.push_back(others == 0 ? *first : concat(*first, "; likewise those of ", others, " other files"));
}

std::vector<DataPart> parts_of(const std::vector<TokenFiles>& sources, const std::vector<int64_t>& rows) {
  std::vector<DataPart> parts;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].weight) parts.push_back({sources[i].name, rows[i], *sources[i].weight});
  }
  return parts;
}

void add_parts(const std::vector<DataPart>& parts, const char* rows_are, const ReadOptions& options, DataArrays* data) {
  if (!is_for_training(options)) return;
  double weights = 0;
  int64_t rows = 0;
  for (const DataPart& part : parts) {
    weights += part.weight;
    rows += part.rows;
  }
  for (const DataPart& part : parts) data->notes.push_back(share_text(part, weights, rows, rows_are));
  data->parts = parts;
}

}  // namespace onnx_train
