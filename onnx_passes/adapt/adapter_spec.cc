#include "onnx_passes/adapt/adapter_spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/select.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

constexpr int64_t kMostRank = 1 << 20;

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

class AdapterParser {
 public:
  explicit AdapterParser(const std::string& method) { spec_.method = method; }

  void read(const std::string& piece) {
    const size_t equals = piece.find('=');
    if (equals == std::string::npos) {
      if (!list_) fail(option(), ": '", piece, "' is no option; write key=value");
      list_->push_back(trimmed(piece));
      return;
    }
    key_ = trimmed(piece.substr(0, equals));
    const std::string value = trimmed(piece.substr(equals + 1));
    list_ = nullptr;
    assign(value);
  }

  AdapterSpec spec() const {
    if (spec_.method == "ia3" && spec_.targets.empty() && spec_.feedforward.empty())
      fail("--ia3 needs the layers that it scales: targets=PATTERNS, feedforward=PATTERNS");
    return spec_;
  }

 private:
  std::string option() const { return "--" + spec_.method; }

  void assign(const std::string& value) {
    const bool lora = spec_.method == "lora", ia3 = spec_.method == "ia3";
    if (lora && key_ == "rank") {
      spec_.rank = static_cast<int64_t>(number(value, 1, kMostRank, /*whole=*/true));
    } else if (lora && key_ == "alpha") {
      spec_.alpha = number(value, 0, 1e6);
    } else if (const std::string layers = pattern_after("rank."); lora && !layers.empty()) {
      spec_.rank_patterns.emplace_back(layers, static_cast<int64_t>(number(value, 1, kMostRank, /*whole=*/true)));
    } else if (const std::string other = pattern_after("alpha."); lora && !other.empty()) {
      spec_.alpha_patterns.emplace_back(other, number(value, 0, 1e6));
    } else if (lora && key_ == "dropout") {
      spec_.dropout = number(value, 0, 1);
      if (spec_.dropout == 1) fail(option(), ": dropout=1 drops everything; take a number below 1");
    } else if (lora && key_ == "rslora") {
      spec_.rslora = truth(value);
    } else if (lora && key_ == "dora") {
      spec_.dora = truth(value);
    } else if (key_ == "targets") {
      start(&spec_.targets, value);
    } else if (ia3 && key_ == "feedforward") {
      start(&spec_.feedforward, value);
    } else {
      const std::vector<std::string> known =
          lora ? std::vector<std::string>{"rank", "alpha",   "dropout",      "rslora",
                                          "dora", "targets", "rank.PATTERN", "alpha.PATTERN"}
               : std::vector<std::string>{"targets", "feedforward"};
      std::string all;
      for (const std::string& key : known) all += concat(all.empty() ? "" : ", ", key);
      fail(option(), " has no option '", key_, "'; it has ", all, did_you_mean(key_, known));
    }
  }

  // "*.query" of "rank.*.query".
  std::string pattern_after(std::string_view start) const {
    return key_.starts_with(start) ? key_.substr(start.size()) : "";
  }

  void start(std::vector<std::string>* list, const std::string& first) {
    list_ = list;
    if (first.empty()) fail(option(), ": ", key_, " takes patterns of names, not ''");
    list->push_back(first);
  }

  double number(const std::string& text, double least, double most, bool whole = false) const {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, value);
    const bool valid = parsed.ec == std::errc() && parsed.ptr == end && !text.empty() && value >= least &&
                       value <= most && (!whole || value == std::floor(value));
    if (!valid) {
      fail(option(), ": ", key_, " is '", text, "'; take a ", whole ? "whole number" : "number", " from ",
           number_text(least), " to ", number_text(most));
    }
    return value;
  }

  bool truth(const std::string& text) const {
    if (text == "true" || text == "1") return true;
    if (text == "false" || text == "0") return false;
    fail(option(), ": ", key_, " is '", text, "'; take true or false");
  }

  AdapterSpec spec_;
  std::string key_;
  std::vector<std::string>* list_ = nullptr;  // that pieces without a key go to
};

template <typename T>
T first_of(const std::vector<std::pair<std::string, T>>& patterns, const std::string& module, T otherwise) {
  for (const auto& [pattern, number] : patterns) {
    if (names_module(pattern, module)) return number;
  }
  return otherwise;
}

}  // namespace

bool names_module(const std::string& pattern, const std::string& module) {
  if (pattern.starts_with('^')) return matches(pattern.substr(1), module);
  if (matches(pattern, module)) return true;
  for (size_t dot = module.find('.'); dot != std::string::npos; dot = module.find('.', dot + 1)) {
    if (matches(pattern, module.substr(dot + 1))) return true;
  }
  return false;
}

int64_t AdapterSpec::rank_of(const std::string& module) const { return first_of(rank_patterns, module, rank); }

double AdapterSpec::alpha_of(const std::string& module) const { return first_of(alpha_patterns, module, alpha); }

double AdapterSpec::scale(const std::string& module, int64_t of_rank) const {
  const auto r = static_cast<double>(of_rank);
  return alpha_of(module) / (rslora ? std::sqrt(r) : r);
}

AdapterSpec parse_adapter(const std::string& method, const std::vector<std::string>& pieces) {
  AdapterParser parser(method);
  for (const std::string& piece : pieces) parser.read(piece);
  return parser.spec();
}

std::string to_string(const AdapterSpec& spec) {
  if (spec.method != "lora") return spec.method;
  std::string text =
      concat("lora rank=", spec.rank, ",alpha=", number_text(spec.alpha), ",dropout=", number_text(spec.dropout),
             ",rslora=", spec.rslora ? "true" : "false", spec.dora ? ",dora=true" : "");
  for (const auto& [pattern, rank] : spec.rank_patterns) text += concat(",rank.", pattern, "=", rank);
  for (const auto& [pattern, alpha] : spec.alpha_patterns) text += concat(",alpha.", pattern, "=", number_text(alpha));
  return text;
}

AdapterSpec parse_adapter_text(const std::string& text) {
  const size_t space = text.find(' ');
  AdapterSpec other;
  other.method = text.substr(0, space);
  if (other.method != "lora" || space == std::string::npos) return other;
  std::vector<std::string> pieces;
  std::istringstream rest(text.substr(space + 1));
  for (std::string piece; std::getline(rest, piece, ',');) pieces.push_back(piece);
  return parse_adapter("lora", pieces);
}

}  // namespace onnx_train
