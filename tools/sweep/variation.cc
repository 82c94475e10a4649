#include "tools/sweep/variation.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"
#include "runtime/data/random.h"
#include "tools/config.h"

namespace onnx_train {
namespace {

constexpr size_t kMostRuns = 10000;

// The pieces between commas that are in no brackets and no quotes.
std::vector<std::string> split_values(const std::string& text) {
  std::vector<std::string> pieces(1);
  int depth = 0;
  char quote = '\0';
  for (const char c : text) {
    if (quote != '\0') {
      if (c == quote) quote = '\0';
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '(' || c == '[' || c == '{') {
      ++depth;
    } else if (c == ')' || c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth == 0) {
      pieces.emplace_back();
      continue;
    }
    pieces.back() += c;
  }
  for (std::string& piece : pieces) piece = stripped(piece);
  return pieces;
}

bool takes_whole_numbers(const CommandOption& option) {
  const auto& to = option.target.to;
  return std::holds_alternative<int64_t*>(to) || std::holds_alternative<uint64_t*>(to) ||
         std::holds_alternative<std::optional<int64_t>*>(to);
}

bool takes_numbers(const CommandOption& option) {
  const auto& to = option.target.to;
  return takes_whole_numbers(option) || std::holds_alternative<double*>(to) ||
         std::holds_alternative<std::optional<double>*>(to);
}

Distribution parse_distribution(const std::string& text, const CommandOption& option) {
  if (!takes_numbers(option)) {
    throw UsageError(concat("--vary: --", key_of(option), " takes no number that could be drawn; list its values"));
  }
  ExpressionReader reader("--vary", text);
  Distribution d;
  d.logarithmic = reader.word("uniform or log_uniform").text == "log_uniform";
  d.whole = takes_whole_numbers(option);
  reader.expect('(', "the lowest number");
  d.low = reader.number();
  reader.expect(',', "the highest number");
  d.high = reader.number();
  reader.expect(')', "the end");
  if (!reader.at_end()) reader.fail_at(reader.column(), "nothing follows a distribution");
  if (!(d.low < d.high) || (d.logarithmic && !(d.low > 0))) {
    throw UsageError(concat("--vary: ", text, " is no range; take numbers of which the first is the lower one",
                            d.logarithmic ? ", both above 0" : ""));
  }
  if (d.whole && std::floor(d.high) < std::ceil(d.low)) {
    throw UsageError(concat("--vary: ", text, " holds no whole number, which --", key_of(option), " takes"));
  }
  return d;
}

std::string draw(const Distribution& d, SplitMix64* random) {
  // Each whole number between the bounds gets an interval of one.
  const double low = d.whole ? std::ceil(d.low) - 0.5 : d.low, high = d.whole ? std::floor(d.high) + 0.5 : d.high;
  const double share = random->uniform();
  double value =
      d.logarithmic ? std::exp(std::log(low) + share * (std::log(high) - std::log(low))) : low + share * (high - low);
  if (d.whole) return std::to_string(std::llround(std::clamp(value, std::ceil(d.low), std::floor(d.high))));
  // Four digits are enough to search with, and can be typed.
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.3e", value);
  value = std::clamp(std::strtod(digits, nullptr), d.low, d.high);
  return number_text(value);
}

}  // namespace

Variation parse_variation(const std::string& text, const std::vector<CommandOption>& options) {
  const size_t equals = text.find('=');
  const std::string name = stripped(text.substr(0, equals));
  if (equals == std::string::npos || name.empty()) {
    throw UsageError(concat("--vary takes NAME=VALUE,VALUE,..., not '", text, "'"));
  }
  const auto option =
      std::find_if(options.begin(), options.end(), [&](const CommandOption& o) { return names_option(o, name); });
  if (option == options.end()) {
    std::vector<std::string> known;
    for (const CommandOption& o : options) known.push_back(key_of(o));
    throw UsageError(
        concat("--vary: there is no option '", name, "' of fit that a sweep can vary", did_you_mean(name, known)));
  }
  Variation variation{key_of(*option), split_values(text.substr(equals + 1)), {}};
  for (const std::string& value : variation.values) {
    if (value.empty()) throw UsageError(concat("--vary: '", text, "' has an empty value"));
    if (std::count(variation.values.begin(), variation.values.end(), value) > 1) {
      throw UsageError(concat("--vary: '", text, "' has the value ", value, " twice"));
    }
    const bool is_distribution = value.starts_with("uniform(") || value.starts_with("log_uniform(");
    if (!is_distribution) continue;
    if (variation.values.size() > 1) throw UsageError(concat("--vary: nothing follows ", value));
    variation.distribution = parse_distribution(value, *option);
  }
  if (variation.distribution) variation.values.clear();
  return variation;
}

std::vector<VariedOptions> grid(const std::vector<Variation>& variations) {
  std::vector<VariedOptions> runs(1);
  for (const Variation& variation : variations) {
    if (variation.distribution) {
      throw UsageError(concat("--vary ", variation.key, " is a distribution; give --random N, the number of runs"));
    }
    if (runs.size() * variation.values.size() > kMostRuns) {
      throw UsageError(concat("the grid has more than ", kMostRuns, " runs; take --random N of them"));
    }
    std::vector<VariedOptions> longer;
    for (const VariedOptions& run : runs) {
      for (const std::string& value : variation.values) {
        longer.push_back(run);
        longer.back().emplace_back(variation.key, value);
      }
    }
    runs = std::move(longer);
  }
  return runs;
}

std::vector<VariedOptions> draws(const std::vector<Variation>& variations, int64_t count, uint64_t seed) {
  constexpr int kTries = 1000;  // for one that differs from all before
  SplitMix64 random(seed);
  std::vector<VariedOptions> runs;
  std::set<VariedOptions> known;
  while (static_cast<int64_t>(runs.size()) < count) {
    VariedOptions run;
    for (int i = 0; i < kTries && (i == 0 || known.count(run) > 0); ++i) {
      run.clear();
      for (const Variation& v : variations) {
        const auto choices = static_cast<double>(v.values.size());
        run.emplace_back(v.key, v.distribution ? draw(*v.distribution, &random)
                                               : v.values[static_cast<size_t>(random.uniform() * choices)]);
      }
    }
    if (!known.insert(run).second) break;
    runs.push_back(std::move(run));
  }
  return runs;
}

std::string run_name(const VariedOptions& varied) {
  constexpr size_t kLongest = 120;
  std::string exact, name;
  for (const auto& [key, value] : varied) exact += concat(exact.empty() ? "" : ",", key, "=", value);
  for (size_t i = 0; i < exact.size(); ++i) {
    const char c = exact[i];
    const bool ends_file_name =
        c == '.' && i + 1 < exact.size() && std::isalpha(static_cast<unsigned char>(exact[i + 1]));
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) || std::string("=,._+-").find(c) != std::string::npos;
    name += plain && !ends_file_name ? c : '-';
  }
  if (name == exact && name.size() <= kLongest) return name;
  char hash[16];
  std::snprintf(hash, sizeof hash, "%08llx",
                static_cast<unsigned long long>(XXH3_64bits(exact.data(), exact.size()) >> 32U));
  return concat(name.substr(0, kLongest), "~", hash);
}

}  // namespace onnx_train
