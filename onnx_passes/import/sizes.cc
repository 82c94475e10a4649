#include "onnx_passes/import/sizes.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

bool read(const std::string& text, int64_t* value) {
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, *value);
  return !text.empty() && parsed.ec == std::errc() && parsed.ptr == end;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(separator, start), text.size());
    const size_t first = std::min(text.find_first_not_of(' ', start), end);
    const size_t last = text.find_last_not_of(' ', end == 0 ? 0 : end - 1);
    parts.push_back(first < end ? text.substr(first, last + 1 - first) : "");
    start = end + 1;
  }
  return parts;
}

}  // namespace

std::pair<std::string, int64_t> parse_size(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) fail("NAME=N");
  int64_t value = 0;
  if (!read(text.substr(equals + 1), &value) || value < 0) fail("NAME=N, N a whole number of at least 0");
  return {text.substr(0, equals), value};
}

Sizes parse_sizes(const std::vector<std::string>& texts) {
  Sizes sizes;
  for (const std::string& text : texts) {
    const auto size = parse_size(text);
    if (!sizes.insert(size).second) fail_as(ErrorCode::kUsage, "--dim ", size.first, " is given twice");
  }
  return sizes;
}

std::optional<int64_t> evaluate_size(const std::string& symbol, const Sizes& sizes) {
  if (const auto found = sizes.find(symbol); found != sizes.end()) return found->second;
  int64_t sum = 0;
  for (const std::string& term : split(symbol, '+')) {
    int64_t product = 1;
    for (const std::string& factor : split(term, '*')) {
      int64_t number = 0;
      if (const auto found = sizes.find(factor); found != sizes.end()) {
        number = found->second;
      } else if (!read(factor, &number)) {
        return std::nullopt;
      }
      if (__builtin_mul_overflow(product, number, &product)) return std::nullopt;
    }
    if (__builtin_add_overflow(sum, product, &sum)) return std::nullopt;
  }
  return sum;
}

TensorType with_sizes(TensorType type, const Sizes& sizes) {
  if (!type.dims || sizes.empty()) return type;
  for (Dim& dim : *type.dims) {
    if (dim.known()) continue;
    if (const auto size = evaluate_size(dim.symbol(), sizes)) dim = Dim(*size);
  }
  return type;
}

void fix_dimensions(Graph* graph, const Sizes& sizes) {
  if (sizes.empty()) return;
  std::set<std::string> symbols;
  for (Value* input : graph->inputs()) {
    for (const Dim& dim : input->has_rank() ? *input->type().dims : Dims()) {
      if (!dim.symbol().empty()) symbols.insert(dim.symbol());
    }
    input->set_type(with_sizes(input->type(), sizes));
  }
  std::string all;
  for (const std::string& symbol : symbols) all += concat(all.empty() ? "" : ", ", symbol);
  const std::vector<std::string> names(symbols.begin(), symbols.end());
  for (const auto& [name, size] : sizes) {
    const auto mentions = [&, &wanted = name](const std::string& symbol) {
      const auto terms = split(symbol, '+');
      return std::any_of(terms.begin(), terms.end(), [&](const std::string& term) {
        const auto factors = split(term, '*');
        return std::find(factors.begin(), factors.end(), wanted) != factors.end();
      });
    };
    if (symbols.count(name) || std::any_of(names.begin(), names.end(), mentions)) continue;
    fail_as(ErrorCode::kNoDimension, "--dim ", name, "=", size, ": no input has a dimension '", name, "'; ",
            all.empty() ? "all sizes are fixed" : "those of no fixed size are " + all, did_you_mean(name, names));
  }
}

}  // namespace onnx_train
