#include "onnx_passes/model/select.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "onnx_passes/io/file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/model/build_options.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/text/expression.h"
#include "platform/glob.h"

namespace onnx_train {
namespace {

constexpr size_t kNoEnd = std::string::npos;

std::vector<std::string> read_lines(const std::string& path, const std::string& option) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) fail(option, " @", path, ": the file cannot be read");
  std::istringstream file(read_file(path));
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

// Names whose beginning is like that of the glob, or whose end is: those of "head.weight" for "hed.*" and "*.wieght".
std::vector<std::string> similar_to_glob(const std::string& glob, const std::vector<std::string>& names) {
  const std::string head = glob.substr(0, glob.find_first_of("*?["));
  const size_t last = glob.find_last_of("*?]");
  const std::string tail = last == std::string::npos ? "" : glob.substr(last + 1);
  std::vector<std::string> found;
  for (const std::string& name : names) {
    const bool begins = head.size() > 1 && !similar_names(head, {name.substr(0, head.size())}).empty();
    const bool ends = tail.size() > 1 && name.size() >= tail.size() &&
                      !similar_names(tail, {name.substr(name.size() - tail.size())}).empty();
    if (begins || ends) found.push_back(name);
  }
  return found;
}

[[noreturn]] void nothing_matches(const std::string& pattern, const std::vector<Value*>& values,
                                  const std::string& option) {
  std::vector<std::string> names;
  for (const Value* value : values) names.push_back(value->name());
  std::string similar = similar_names(pattern, names);
  if (similar.empty() && pattern.find_first_of("*?[") != kNoEnd) {
    similar =
        first_few(similar_to_glob(pattern, names), 3, [](const std::string& name) { return concat("'", name, "'"); });
  }
  std::string examples;
  for (size_t i = 0; i < names.size() && i < 3; ++i) examples += concat(i ? ", '" : "'", names[i], "'");
  fail_as(ErrorCode::kNoWeightMatches, option, " '", pattern, "' matches none of the ", names.size(), " weights; ",
          similar.empty() ? "they are called " : "did you mean ", similar.empty() ? examples : similar,
          similar.empty() ? (names.size() > 3 ? ", ..." : "") : "?");
}

// Calls f(chosen, is_name) with the values that each pattern matches, by their names or those that they have in the
// PyTorch module. Throws Error for a pattern without a match.
template <typename F>
void for_each_pattern(const std::vector<Value*>& values, const std::vector<std::string>& patterns,
                      const std::string& option, const F& f) {
  std::vector<std::pair<std::string, Value*>> names;
  for (Value* value : values) {
    names.emplace_back(value->name(), value);
    for (std::string& name : other_names(*value)) names.emplace_back(std::move(name), value);
  }
  std::unordered_multimap<std::string_view, Value*> by_name;
  for (const auto& [name, value] : names) by_name.emplace(name, value);
  for (const std::string& pattern : without_files(patterns, option)) {
    std::vector<Value*> chosen;
    const auto [first, last] = by_name.equal_range(pattern);
    for (auto it = first; it != last; ++it) chosen.push_back(it->second);
    const bool is_name = !chosen.empty();
    // Lists of plain names, as in files, are looked up by name.
    const bool is_glob = pattern.find_first_of("*?[") != kNoEnd;
    for (size_t i = 0; is_glob && i < names.size(); ++i) {
      if (matches(pattern, names[i].first)) chosen.push_back(names[i].second);
    }
    if (chosen.empty() && pattern != "*") nothing_matches(pattern, values, option);
    f(chosen, is_name);
  }
}

// The patterns without those that name running statistics and no weight: frozen_statistics.h reads them.
std::vector<std::string> for_weights(const std::vector<std::string>& patterns, const std::string& option,
                                     const std::vector<Value*>& weights, const std::vector<Value*>& statistics) {
  const auto names_one_of = [](const std::string& pattern, const std::vector<Value*>& values) {
    return std::any_of(values.begin(), values.end(), [&](const Value* value) {
      std::vector<std::string> names = other_names(*value);
      names.push_back(value->name());
      return std::any_of(names.begin(), names.end(),
                         [&](const std::string& name) { return pattern == name || matches(pattern, name); });
    });
  };
  std::vector<std::string> kept;
  for (std::string& pattern : without_files(patterns, option)) {
    if (!names_one_of(pattern, statistics) || names_one_of(pattern, weights)) kept.push_back(std::move(pattern));
  }
  return kept;
}

// Throws Error for names that no gradient belongs to.
void expect_gradients(const Model& model, const std::vector<std::string>& train, const std::vector<std::string>& left) {
  for (const std::string& name : left) {
    const Value* value = model.graph->find(name);
    if (value && value->is_initializer() && !is_float(value->dtype()))
      fail("--train '", name, "' is ", to_string(value->type()), ", no float, and has no gradient; leave it out");
  }
  if (!train.empty() && left.empty())
    fail("--train '", train[0],
         "' names running statistics of batch normalization, which it updates without a gradient, "
         "and no weight; name weights, too");
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) { return platform::matches_glob(pattern, name); }

std::vector<Value*> match_names(const std::vector<Value*>& values, const std::vector<std::string>& patterns,
                                const std::string& option) {
  std::unordered_set<const Value*> chosen;
  for_each_pattern(values, patterns, option,
                   [&](const std::vector<Value*>& found, bool) { chosen.insert(found.begin(), found.end()); });
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
  const auto constants = constants_of(model);
  const auto is_weight = [&](const Value* v) {
    const Origin origin = origin_of(*v);
    const bool number = v->has_rank() && v->rank() == 0 && origin != Origin::kParameter && origin != Origin::kNamed;
    return !number && (constants.empty() || !constants.count(v->name()));
  };
  std::vector<Value*> candidates, statistics;
  for (Value* value : model.graph->initializers()) {
    const bool added = value->is_constant();  // by a pass
    if (is_float(value->dtype()) && !added) (is_running_statistic(value) ? statistics : candidates).push_back(value);
  }
  const auto patterns = [&](const std::vector<std::string>& given, const std::string& option) {
    return for_weights(given, option, candidates, statistics);
  };
  std::unordered_set<const Value*> chosen;
  const auto adapted = trained_with_adapters(model);
  std::copy_if(candidates.begin(), candidates.end(), std::inserter(chosen, chosen.end()), [&](const Value* v) {
    return adapted.empty() ? train.empty() && is_weight(v) : adapted.count(v->name()) > 0;
  });
  // A glob such as "*" selects weights; constants only if it matches no weight, or by their names.
  const std::vector<std::string> for_training = patterns(train, "--train");
  expect_gradients(model, train, for_training);
  for_each_pattern(candidates, for_training, "--train", [&](std::vector<Value*>& found, bool is_name) {
    const bool any_weight = std::any_of(found.begin(), found.end(), is_weight);
    if (any_weight && !is_name) std::erase_if(found, [&](const Value* v) { return !is_weight(v); });
    chosen.insert(found.begin(), found.end());
  });
  for_each_pattern(candidates, patterns(freeze, "--freeze"), "--freeze", [&](const std::vector<Value*>& found, bool) {
    for (const Value* v : found) chosen.erase(v);
  });
  std::erase_if(candidates, [&](const Value* v) { return !chosen.count(v); });
  return candidates;
}

}  // namespace onnx_train
