#include "onnx_passes/passes/select.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/passes/batch_statistics.h"
#include "onnx_passes/passes/expression.h"
#include "onnx_passes/passes/passes.h"
#include "onnx_passes/passes/weight_roles.h"

namespace onnx_train {
namespace {

constexpr size_t kNoEnd = std::string::npos;

// The end of the set that opens at `open`, or kNoEnd; a `]` directly after the opening belongs to the set.
size_t set_end(const std::string& pattern, size_t open) {
  size_t first = open + 1;
  if (first < pattern.size() && pattern[first] == '!') ++first;
  return pattern.find(']', first + 1);
}

bool in_set(const std::string& pattern, size_t open, size_t end, char c) {
  size_t i = open + 1;
  const bool negated = pattern[i] == '!';
  if (negated) ++i;
  bool inside = false;
  for (; i < end; ++i) {
    if (i + 2 < end && pattern[i + 1] == '-') {
      inside = inside || (pattern[i] <= c && c <= pattern[i + 2]);
      i += 2;
    } else {
      inside = inside || pattern[i] == c;
    }
  }
  return inside != negated;
}

// The number of pattern characters that match the one character c; 0 if they do not match.
size_t match_one(const std::string& pattern, size_t at, char c) {
  if (pattern[at] == '?') return 1;
  const size_t end = pattern[at] == '[' ? set_end(pattern, at) : kNoEnd;
  if (end != kNoEnd) return in_set(pattern, at, end, c) ? end + 1 - at : 0;
  return pattern[at] == c ? 1 : 0;
}

std::vector<std::string> read_lines(const std::string& path, const std::string& option) {
  std::error_code error;
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, error)) file.open(path);  // other files may be endless
  if (!file.is_open()) fail(option, " @", path, ": the file cannot be read");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> without_files(const std::vector<std::string>& patterns, const std::string& option) {
  std::vector<std::string> result;
  for (const std::string& pattern : patterns) {
    if (pattern.starts_with('@')) {
      for (std::string& line : read_lines(pattern.substr(1), option)) result.push_back(std::move(line));
    } else {
      result.push_back(pattern);
    }
  }
  return result;
}

[[noreturn]] void nothing_matches(const std::string& pattern, const std::vector<Value*>& values,
                                  const std::string& option) {
  std::vector<std::string> names;
  for (const Value* value : values) names.push_back(value->name());
  const std::string similar = similar_names(pattern, names);
  std::string examples;
  for (size_t i = 0; i < names.size() && i < 3; ++i) examples += concat(i ? ", '" : "'", names[i], "'");
  fail(option, " '", pattern, "' matches none of the ", names.size(), " weights; ",
       similar.empty() ? "they are called " : "did you mean ", similar.empty() ? examples : similar,
       similar.empty() ? (names.size() > 3 ? ", ..." : "") : "?");
}

bool is_read_as_statistic(const Use& use) { return use.node->is("BatchNormalization") && use.index >= 3; }

// Whether statistics of the channels of all samples are made of the value, by Tile and the like, and nothing else is.
bool is_repeated_statistic(const Value* value, int steps = 0) {
  constexpr int kMaxSteps = 8;
  const auto repeats = [](const Node& node) {
    return node.is("Tile") || node.is("Expand") || node.is("Reshape") || node.is("Identity");
  };
  return steps < kMaxSteps && !value->uses().empty() &&
         std::all_of(value->uses().begin(), value->uses().end(), [&](const Use& use) {
           if (is_read_as_statistic(use)) return true;
           return repeats(*use.node) && use.index == 0 && is_repeated_statistic(use.node->output(), steps + 1);
         });
}

// The running mean and variance of batch normalization: state that training updates by its own rule.
bool is_running_statistic(const Value* value) {
  return std::any_of(value->uses().begin(), value->uses().end(), is_read_as_statistic) || is_repeated_statistic(value);
}

bool is_reshape(const Node* node) { return node && node->is("Reshape"); }

// The ones and zeros of an InstanceNormalization between two Reshapes: exporters write group normalization like this,
// with its own scale and bias after it.
bool belongs_to_groups(const Value* value) {
  const auto is_part = [](const Use& use) {
    if (!use.node->is("InstanceNormalization") || use.index == 0 || !is_reshape(use.node->input(0)->producer()))
      return false;
    const std::vector<Use>& readers = use.node->output()->uses();
    return std::all_of(readers.begin(), readers.end(), [](const Use& reader) { return is_reshape(reader.node); });
  };
  if (value->uses().empty() || !std::all_of(value->uses().begin(), value->uses().end(), is_part)) return false;
  const Tensor tensor = constant_of(value);
  const double first = tensor.size() > 0 ? tensor.at(0) : 0;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    if (tensor.at(i) != first) return false;
  }
  return first == 0 || first == 1;
}

// The scale or bias of a batch normalization whose channels are those of all samples (batch_statistics.h).
bool belongs_to_samples(const Value* value) {
  return !value->uses().empty() && std::all_of(value->uses().begin(), value->uses().end(), [](const Use& use) {
    return use.node->is("BatchNormalization") && use.index > 0 && normalizes_samples(*use.node);
  });
}

// Scalars are mostly constants of formulas (an attention's scale, an epsilon), not weights; so are tensors with one
// element that element-wise operators read, unless they are the bias of a layer with one output.
bool trained_by_default(const Value* value) {
  if (belongs_to_groups(value) || belongs_to_samples(value)) return false;
  if (!value->type().is_static() || num_elements(value->type().shape()) != 1) return true;
  if (value->rank() == 0) return false;
  const bool is_operand = std::all_of(value->uses().begin(), value->uses().end(), [](const Use& use) {
    const Operator& row = operator_of(*use.node);
    const bool combines = row.kind == OperatorKind::kElementwise && use.node->num_inputs() > 1 && row.weights.empty();
    return combines || use.node->is("Expand");
  });
  const WeightUse use = use_of(*value);
  return !is_operand || (use.role == WeightRole::kBias && use.fan_in > 0);
}

// The patterns without those that name running statistics and no weight: frozen_statistics.h reads them.
std::vector<std::string> for_weights(const std::vector<std::string>& patterns, const std::string& option,
                                     const std::vector<Value*>& weights, const std::vector<Value*>& statistics) {
  std::vector<std::string> kept;
  for (std::string& pattern : without_files(patterns, option)) {
    const auto matched = [&](const Value* v) { return pattern == v->name() || matches(pattern, v->name()); };
    const bool of_statistics = std::any_of(statistics.begin(), statistics.end(), matched);
    if (!of_statistics || std::any_of(weights.begin(), weights.end(), matched)) kept.push_back(std::move(pattern));
  }
  return kept;
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) {
  size_t p = 0, n = 0, star = kNoEnd, restart = 0;
  while (n < name.size()) {
    const size_t matched = p < pattern.size() && pattern[p] != '*' ? match_one(pattern, p, name[n]) : 0;
    if (matched) {
      p += matched;
      ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      restart = n;
    } else if (star != kNoEnd) {
      p = star + 1;
      n = ++restart;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<Value*> match_names(const std::vector<Value*>& values, const std::vector<std::string>& patterns,
                                const std::string& option) {
  std::unordered_map<std::string_view, const Value*> by_name;
  for (const Value* value : values) by_name.emplace(value->name(), value);
  std::unordered_set<const Value*> chosen;
  for (const std::string& pattern : without_files(patterns, option)) {
    bool any = false;
    if (const auto found = by_name.find(pattern); found != by_name.end()) {
      chosen.insert(found->second);
      any = true;
    }
    // Lists of plain names, as in files, are looked up by name.
    const bool is_glob = pattern.find_first_of("*?[") != kNoEnd;
    for (size_t i = 0; is_glob && i < values.size(); ++i) {
      if (!matches(pattern, values[i]->name())) continue;
      chosen.insert(values[i]);
      any = true;
    }
    if (!any) nothing_matches(pattern, values, option);
  }
  std::vector<Value*> result;
  std::copy_if(values.begin(), values.end(), std::back_inserter(result), [&](Value* v) { return chosen.count(v) > 0; });
  return result;
}

std::vector<Value*> find_names(const std::vector<Value*>& values, const std::vector<std::string>& patterns,
                               const std::string& option) {
  const std::vector<std::string> all = without_files(patterns, option);
  const std::unordered_set<std::string_view> names(all.begin(), all.end());
  std::vector<Value*> found;
  std::copy_if(values.begin(), values.end(), std::back_inserter(found), [&](const Value* value) {
    return names.count(value->name()) || std::any_of(all.begin(), all.end(), [&](const std::string& pattern) {
             return pattern.find_first_of("*?[") != kNoEnd && matches(pattern, value->name());
           });
  });
  return found;
}

std::vector<Value*> select_trainable(const Model& model, const std::vector<std::string>& train,
                                     const std::vector<std::string>& freeze) {
  std::vector<Value*> weights, statistics;
  for (Value* value : model.graph->initializers()) {
    if (is_float(value->dtype())) (is_running_statistic(value) ? statistics : weights).push_back(value);
  }
  std::vector<Value*> selected;
  if (train.empty()) {
    std::copy_if(weights.begin(), weights.end(), std::back_inserter(selected), trained_by_default);
  } else {
    selected = match_names(weights, for_weights(train, "--train", weights, statistics), "--train");
    // "*" selects the weights, not the constants of formulas that exporters write as initializers.
    const std::vector<std::string> names = without_files(train, "--train");
    std::erase_if(selected, [&](const Value* v) {
      return v->has_rank() && v->rank() == 0 && std::find(names.begin(), names.end(), v->name()) == names.end();
    });
  }
  if (!freeze.empty()) {
    const auto frozen = match_names(weights, for_weights(freeze, "--freeze", weights, statistics), "--freeze");
    const std::unordered_set<const Value*> is_frozen(frozen.begin(), frozen.end());
    std::erase_if(selected, [&](const Value* v) { return is_frozen.count(v) > 0; });
  }
  return selected;
}

}  // namespace onnx_train
