#include "runtime/models/adapter_sums.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

// "DIR=0.5", unless there is a folder of that name.
AdapterSum::Term parse_term(const std::string& piece) {
  std::error_code error;
  const size_t equals = piece.rfind('=');
  if (equals == std::string::npos || std::filesystem::exists(piece, error)) return {piece, 1};
  AdapterSum::Term term{piece.substr(0, equals), 0};
  const char* const end = piece.data() + piece.size();
  const auto [stop, fault] = std::from_chars(piece.data() + equals + 1, end, term.weight);
  if (fault != std::errc() || stop != end || term.folder.empty() || !std::isfinite(term.weight) || term.weight == 0)
    fail_as(ErrorCode::kUsage, "--adapter '", piece,
            "': write DIR=WEIGHT, such as style=0.5, or combination=cat|linear");
  return term;
}

// A of one layer and one adapter, and B, with w s.
struct LayerTerm {
  Tensor a, b;
  double scale;
};

// Adds factor * x to the doubles of `sum`, which is made at the first call.
void add_times(const Tensor& x, double factor, Tensor* sum) {
  if (sum->empty()) *sum = Tensor(DType::kDouble, x.shape());
  for (int64_t i = 0; i < x.size(); ++i) sum->set(i, sum->at(i) + factor * x.at(i));
}

// The rows of `x`, times `factor`, after the first `at` ones of `whole`.
void put_rows(const Tensor& x, double factor, int64_t at, Tensor* whole) {
  const int64_t row = x.shape()[0] > 0 ? x.size() / x.shape()[0] : 0;
  for (int64_t i = 0; i < x.size(); ++i) whole->set(at * row + i, factor * x.at(i));
}

// B is [out, rank, ...], of which only ones follow.
void put_columns(const Tensor& x, int64_t at, Tensor* whole) {
  const int64_t rank = x.shape()[1], all = whole->shape()[1];
  for (int64_t i = 0; i < x.size(); ++i) whole->set(i / rank * all + at + i % rank, x.at(i));
}

class Combiner {
 public:
  Combiner(const AdapterSum& sum, const std::vector<AdapterOfFolder>& adapters) : sum_(sum), adapters_(adapters) {}

  AdapterOfFolder run() {
    std::set<std::string> modules;
    for (size_t i = 0; i < adapters_.size(); ++i) {
      const AdapterSpec& spec = adapters_[i].spec;
      if (spec.method != "lora" || spec.dora)
        fail_as(ErrorCode::kData, sum_.terms[i].folder, ": sums are of LoRA's adapters without DoRA; this is ",
                to_string(spec));
      modules.insert(spec.targets.begin(), spec.targets.end());
    }
    result_.spec = adapters_[0].spec;
    result_.spec.rslora = false;
    result_.spec.rank_patterns.clear();
    result_.spec.alpha_patterns.clear();
    result_.spec.targets.assign(modules.begin(), modules.end());
    bool first = true;
    for (const std::string& module : modules) {
      const int64_t rank = combine(module);
      if (first) result_.spec.rank = rank;
      if (first) result_.spec.alpha = static_cast<double>(rank);  // A and B hold all scales
      first = false;
      if (rank == result_.spec.rank) continue;
      result_.spec.rank_patterns.emplace_back("^" + module, rank);
      result_.spec.alpha_patterns.emplace_back("^" + module, static_cast<double>(rank));
    }
    take_others();
    return std::move(result_);
  }

 private:
  static std::string name_of(const std::string& module, const char* part) { return module + "." + part + ".weight"; }

  std::vector<LayerTerm> terms_of(const std::string& module) const {
    std::vector<LayerTerm> terms;
    for (size_t i = 0; i < adapters_.size(); ++i) {
      const TensorMap& values = adapters_[i].values;
      const auto a = values.find(name_of(module, parts::kA)), b = values.find(name_of(module, parts::kB));
      if (a == values.end() && b == values.end()) continue;
      const bool fits = a != values.end() && b != values.end() && a->second.shape().size() >= 2 &&
                        b->second.shape().size() >= 2 && a->second.shape()[0] == b->second.shape()[1];
      const bool alike = fits && (terms.empty() ||
                                  (same_but_rank(a->second, terms[0].a, 0) && same_but_rank(b->second, terms[0].b, 1)));
      if (!alike)
        fail_as(ErrorCode::kData, sum_.terms[i].folder, ": the shapes of A and B of '", module, "' do not fit",
                fits ? " those of " + sum_.terms[0].folder : "");
      const int64_t rank = a->second.shape()[0];
      terms.push_back({a->second, b->second, sum_.terms[i].weight * adapters_[i].spec.scale(module, rank)});
    }
    return terms;
  }

  static bool same_but_rank(const Tensor& x, const Tensor& y, size_t axis) {
    Shape a = x.shape(), b = y.shape();
    if (a.size() <= axis || a.size() != b.size()) return false;
    a[axis] = b[axis];
    return a == b;
  }

  // Returns the rank of the sum.
  int64_t combine(const std::string& module) {
    const std::vector<LayerTerm> terms = terms_of(module);
    const Tensor& first = terms[0].a;
    Tensor a, b;
    if (sum_.combination == AdapterCombination::kLinear) {
      for (const LayerTerm& term : terms) {
        if (term.a.shape() != first.shape())
          fail_as(ErrorCode::kData, "--adapter combination=linear: '", module, "' has ranks ", first.shape()[0],
                  " and ", term.a.shape()[0], "; combination=cat takes any");
        const double root = std::sqrt(std::abs(term.scale));
        add_times(term.a, term.scale < 0 ? -root : root, &a);
        add_times(term.b, root, &b);
      }
    } else {
      Shape of_a = first.shape(), of_b = terms[0].b.shape();
      of_a[0] = of_b[1] = 0;
      for (const LayerTerm& term : terms) of_a[0] = of_b[1] += term.a.shape()[0];
      a = Tensor(DType::kDouble, of_a);
      b = Tensor(DType::kDouble, of_b);
      int64_t at = 0;
      for (const LayerTerm& term : terms) {
        put_rows(term.a, term.scale, at, &a);
        put_columns(term.b, at, &b);
        at += term.a.shape()[0];
      }
    }
    result_.values[name_of(module, parts::kA)] = a.cast(first.dtype());
    result_.values[name_of(module, parts::kB)] = b.cast(terms[0].b.dtype());
    return a.shape()[0];
  }

  // What was trained besides: heads and embeddings have no sum.
  void take_others() {
    std::set<std::string> combined;
    for (const auto& [name, value] : result_.values) combined.insert(name);
    for (size_t i = 0; i < adapters_.size(); ++i) {
      for (const auto& [name, value] : adapters_[i].values) {
        if (combined.count(name)) continue;
        if (!result_.values.emplace(name, value).second)
          fail_as(ErrorCode::kData, sum_.terms[i].folder, ": '", name,
                  "' was trained beside several of the adapters, and such weights have no sum");
      }
    }
  }

  const AdapterSum& sum_;
  const std::vector<AdapterOfFolder>& adapters_;
  AdapterOfFolder result_;
};

}  // namespace

AdapterSum parse_adapter_sum(const std::vector<std::string>& pieces) {
  AdapterSum sum;
  for (const std::string& piece : pieces) {
    if (piece == "combination=linear" || piece == "combination=cat") {
      sum.combination = piece.ends_with("linear") ? AdapterCombination::kLinear : AdapterCombination::kConcatenation;
    } else {
      sum.terms.push_back(parse_term(piece));
    }
  }
  if (sum.terms.empty()) fail_as(ErrorCode::kUsage, "--adapter needs the folder of an adapter");
  return sum;
}

std::string to_string(const AdapterSum& sum) {
  std::string text;
  for (const AdapterSum::Term& term : sum.terms)
    text += concat(text.empty() ? "" : ", ", number_text(term.weight), " times ", term.folder);
  const bool linear = sum.combination == AdapterCombination::kLinear;
  return concat("the adapters are one, combined by ", linear ? "linear" : "cat", ": ", text);
}

AdapterOfFolder combined(const AdapterSum& sum, const std::vector<AdapterOfFolder>& adapters) {
  return Combiner(sum, adapters).run();
}

}  // namespace onnx_train
