#include "runtime/models/size_search.h"

#include <algorithm>
#include <set>

#include "onnx_passes/import/sizes.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

constexpr size_t kMostCandidates = 40;
constexpr size_t kMostNodes = 200'000;  // in all plans together

// Small sizes find most mistakes at once; images and sounds have customary ones, and networks that halve them five
// times want multiples of 32.
constexpr int64_t kSizes[] = {8, 1, 2, 32, 64, 224, 3, 4, 16, 128, 5, 6, 7, 10, 12, 28, 256, 512, 1024, 16000};

bool is_name(const std::string& symbol) { return !symbol.empty() && symbol.find_first_of("*+=") == std::string::npos; }

// The dimensions of a model's inputs by kind, without those that are given.
struct Symbols {
  std::vector<std::string> batches, others;
};

Symbols symbols_of(const Graph& graph, const Sizes& given) {
  std::set<std::string> first, others;
  for (const Value* input : graph.inputs()) {
    if (!input->has_rank() || input->is_initializer()) continue;
    const Dims& dims = *input->type().dims;
    for (size_t i = 0; i < dims.size(); ++i) {
      const std::string& symbol = dims[i].symbol();
      if (dims[i].known() || !is_name(symbol) || given.count(symbol)) continue;
      (i == 0 ? first : others).insert(symbol);
    }
  }
  Symbols symbols;
  for (const std::string& symbol : first) others.erase(symbol);
  symbols.batches.assign(first.begin(), first.end());
  symbols.others.assign(others.begin(), others.end());
  return symbols;
}

void put(const std::vector<std::string>& names, int64_t size, Sizes* sizes) {
  for (const std::string& name : names) (*sizes)[name] = size;
}

void check_given(const Graph& graph, const Sizes& given) {
  std::set<std::string> names;
  std::string all;
  for (const Value* input : graph.inputs()) {
    for (const Dim& dim : input->has_rank() ? *input->type().dims : Dims()) {
      if (!dim.symbol().empty() && names.insert(dim.symbol()).second)
        all += concat(all.empty() ? "" : ", ", dim.symbol());
    }
  }
  names.insert("batch");
  for (const auto& [name, size] : given) {
    if (names.count(name)) continue;
    fail_as(ErrorCode::kNoDimension, "--dim ", name, "=", size, ": no input has a dimension '", name, "'; ",
            all.empty() ? "all sizes are fixed" : "those of no fixed size are " + all,
            did_you_mean(name, {names.begin(), names.end()}));
  }
}

}  // namespace

std::vector<std::vector<std::string>> size_candidates(const Model& model, const std::vector<std::string>& given,
                                                      size_t num_nodes) {
  const Sizes fixed = parse_sizes(given);
  check_given(*model.graph, fixed);
  const Symbols symbols = symbols_of(*model.graph, fixed);
  std::vector<Sizes> all;
  const auto add = [&](Sizes sizes) {
    sizes.insert(fixed.begin(), fixed.end());
    if (std::find(all.begin(), all.end(), sizes) == all.end()) all.push_back(std::move(sizes));
  };
  const auto add_equal = [&](int64_t batch, int64_t other) {
    Sizes sizes;
    put(symbols.batches, batch, &sizes);
    put(symbols.others, other, &sizes);
    add(sizes);
  };
  for (const int64_t size : kSizes) add_equal(kTrialBatch, size);
  for (const int64_t size : {1, 8, 32, 16000}) add_equal(size, size);
  for (const int64_t rest : {8, 32}) {
    for (const std::string& name : symbols.others) {
      for (const int64_t size : {1, 2, 64}) {
        Sizes sizes;
        put(symbols.batches, kTrialBatch, &sizes);
        put(symbols.others, rest, &sizes);
        sizes[name] = size;
        add(sizes);
      }
    }
  }
  all.resize(std::min({all.size(), kMostCandidates, std::max<size_t>(3, kMostNodes / std::max<size_t>(num_nodes, 1))}));
  std::vector<std::vector<std::string>> candidates;
  for (const Sizes& sizes : all) {
    candidates.emplace_back();
    for (const auto& [name, size] : sizes) candidates.back().push_back(concat(name, "=", size));
  }
  return candidates;
}

std::vector<std::string> sizes_of(const std::vector<InputSpec>& inputs, const std::vector<std::string>& sizes) {
  std::set<std::string> symbols;
  for (const InputSpec& input : inputs) {
    for (const Dim& dim : input.type.dims && !input.has_default ? *input.type.dims : Dims()) {
      if (dim.known()) continue;
      symbols.insert(dim.symbol());
      if (dim == input.type.dims->front()) symbols.insert("batch");
    }
  }
  std::vector<std::string> found;
  for (const std::string& size : sizes) {
    if (symbols.count(parse_size(size).first)) found.push_back(size);
  }
  return found;
}

std::string describe_sizes(const std::vector<std::vector<std::string>>& candidates) {
  constexpr size_t kMostShown = 6;
  std::vector<Sizes> all;
  for (const auto& candidate : candidates) all.push_back(parse_sizes(candidate));
  std::string names, first;
  for (const auto& [name, size] : all.at(0)) {
    const std::string& searched = name;
    if (std::all_of(all.begin(), all.end(),
                    [&](const Sizes& sizes) { return sizes.at(searched) == all[0].at(searched); }))
      continue;
    if (size == kTrialBatch && all.size() > 1 && all[1].at(name) == size) continue;  // a batch
    if (first.empty()) first = name;
    names += concat(names.empty() ? "" : " and ", name);
  }
  if (first.empty()) return "the given sizes";
  std::vector<int64_t> shown;
  for (const Sizes& sizes : all) {
    if (std::find(shown.begin(), shown.end(), sizes.at(first)) == shown.end()) shown.push_back(sizes.at(first));
  }
  return concat(names, " of ", first_few(shown, kMostShown, [](int64_t size) { return std::to_string(size); }));
}

}  // namespace onnx_train
