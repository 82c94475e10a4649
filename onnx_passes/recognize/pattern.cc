#include "onnx_passes/recognize/pattern.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "onnx_passes/inference/inference.h"

namespace onnx_train {

// A sum is constant + Σ weightᵢ termᵢ, a product is constant · Π factorᵢ ^ weightᵢ.
struct WeightedPattern {
  double weight;
  Pattern pattern;
};

struct Pattern::Formula {
  enum Kind { kAny, kSum, kProduct, kOp, kMean, kReduce };
  Kind kind;
  std::string name;                    // of any; operator
  std::vector<WeightedPattern> parts;  // of a sum or product; inputs of an operator
  double constant = 0;                 // of a sum or product
  std::string constant_name;           // when any constant will do
};

namespace {

using Formula = Pattern::Formula;

Pattern make(Formula formula) { return Pattern(std::make_shared<const Formula>(std::move(formula))); }

double neutral(Formula::Kind kind) { return kind == Formula::kSum ? 0 : 1; }

// `a` as a sum or product of parts; anything else is a single part of weight 1.
Formula as(Formula::Kind kind, const Pattern& a) {
  if (a->kind == kind) return *a;
  if (a->kind == Formula::kProduct && a->parts.empty()) return {kind, "", {}, a->constant, a->constant_name};
  return {kind, "", {{1, a}}, neutral(kind), ""};
}

Pattern join(Formula::Kind kind, const Pattern& a, const Pattern& b, double weight_of_b) {
  Formula x = as(kind, a), y = as(kind, b);
  for (WeightedPattern part : y.parts) {
    part.weight *= weight_of_b;
    x.parts.push_back(part);
  }
  x.constant =
      kind == Formula::kSum ? x.constant + weight_of_b * y.constant : x.constant * std::pow(y.constant, weight_of_b);
  x.constant_name += y.constant_name;
  return make(std::move(x));
}

}  // namespace

Pattern::Pattern(double number) : Pattern(make({Formula::kProduct, "", {}, number, ""})) {}
Pattern any(const std::string& name) { return make({Formula::kAny, name, {}, 0, ""}); }
Pattern number(const std::string& name) { return make({Formula::kProduct, "", {}, 1, name}); }
Pattern operator+(const Pattern& a, const Pattern& b) { return join(Formula::kSum, a, b, 1); }
Pattern operator-(const Pattern& a, const Pattern& b) { return join(Formula::kSum, a, b, -1); }
Pattern operator*(const Pattern& a, const Pattern& b) { return join(Formula::kProduct, a, b, 1); }
Pattern operator/(const Pattern& a, const Pattern& b) { return join(Formula::kProduct, a, b, -1); }
Pattern operator-(const Pattern& a) { return -1.0 * a; }
Pattern pow(const Pattern& a, double exponent) { return join(Formula::kProduct, 1.0, a, exponent); }
// √(ab) is not expanded: it differs from √a √b if both are negative.
Pattern sqrt(const Pattern& a) { return make({Formula::kProduct, "", {{0.5, a}}, 1, ""}); }
Pattern mean(const Pattern& x) { return make({Formula::kMean, "ReduceMean", {{1, x}}, 0, ""}); }
Pattern reduce(const std::string& op, const Pattern& x) { return make({Formula::kReduce, op, {{1, x}}, 0, ""}); }

Pattern op(const std::string& op, const std::vector<Pattern>& inputs) {
  Formula formula{Formula::kOp, op, {}, 0, ""};
  for (const Pattern& input : inputs) formula.parts.push_back({1, input});
  return make(std::move(formula));
}

namespace {

constexpr int kDepth = 8;         // longest chain of nodes that computes a constant
constexpr int kMaxHandedOn = 64;  // longest chain of nodes that change nothing

bool is_whole(double x) { return x == std::round(x); }

Value* source_of(Value* value) {
  for (int i = 0; i < kMaxHandedOn && value->producer() && hands_on(*value->producer()); ++i) {
    value = value->producer()->input(0);
  }
  return value;
}

class Matcher {
 public:
  explicit Matcher(const ValueSet& weights, DType dtype)
      : weights_(weights),
        precision_(dtype == DType::kDouble    ? std::numeric_limits<double>::epsilon()
                   : dtype == DType::kFloat   ? static_cast<double>(std::numeric_limits<float>::epsilon())
                   : dtype == DType::kFloat16 ? 1.0 / 1024
                                              : 1.0 / 128) {}

  bool match(const Pattern& pattern, Value* value, Match* m) const {
    const Formula& f = *pattern;
    Match found = *m;
    Value* source = source_of(value);
    if (f.kind == Formula::kAny) return m->values.emplace(f.name, source).first->second == source;
    const bool matched = f.kind == Formula::kSum || f.kind == Formula::kProduct
                             ? match_parts(f, {{1, source}}, {}, neutral(f.kind), &found)
                             : match_node(f, source->producer(), &found);
    if (matched) *m = std::move(found);
    return matched;
  }

 private:
  struct Item {
    double weight;
    Value* value;
  };
  using Items = std::vector<Item>;

  // ---- Operators

  bool match_node(const Formula& f, Node* node, Match* m) const {
    if (!node || !node->is(f.name)) return false;
    const bool reduces = f.kind != Formula::kOp;
    if (reduces ? !match_axes(f, *node, m) : node->num_inputs() != static_cast<int>(f.parts.size())) return false;
    m->nodes.insert(node);
    for (size_t i = 0; i < f.parts.size(); ++i) {
      Value* input = node->input(static_cast<int>(i));
      if (!input || !match(f.parts[i].pattern, input, m)) return false;
    }
    return true;
  }

  static bool match_axes(const Formula& f, const Node& node, Match* m) {
    const Value* x = node.input(0);
    const Tensor axes = node.input(1) ? constant_of(node.input(1)) : Tensor();
    if (axes.empty() || axes.size() == 0 || !x->has_rank() || node.attr("keepdims", 1) == 0) return false;
    std::vector<int64_t> sorted = axes.to_ints();
    for (int64_t& axis : sorted) axis = normalize_axis(axis, x->rank());
    std::sort(sorted.begin(), sorted.end());
    if (f.kind == Formula::kReduce && sorted.size() != 1) return false;
    std::vector<int64_t> last(sorted.size());
    std::iota(last.begin(), last.end(), x->rank() - static_cast<int64_t>(sorted.size()));
    if (f.kind == Formula::kMean && sorted != last) return false;
    if (m->axes.empty()) m->axes = sorted;
    return m->axes == sorted;
  }

  // ---- Sums and products: expands the value's tree of additions or multiplications node by node, as far as the parts
  // of the formula require.

  bool match_parts(const Formula& f, Items pending, Items done, double constant, Match* m) const {
    if (pending.size() + done.size() > most_items(f) + 1) return false;
    if (pending.empty()) {
      return match_constant(f, constant, m) && assign(f, merged(done), 0, m);
    }
    const Item item{pending.back().weight, source_of(pending.back().value)};
    pending.pop_back();
    if (const auto c = number_of(item.value, kDepth)) {
      const double more = f.kind == Formula::kSum ? constant + item.weight * *c : constant * std::pow(*c, item.weight);
      return match_parts(f, pending, done, more, m);
    }
    Items apart = pending;
    double factor = 1;
    if (take_apart(f.kind, item, &apart, &factor)) {
      Match found = *m;
      found.nodes.insert(item.value->producer());
      if (match_parts(f, apart, done, f.kind == Formula::kProduct ? constant * factor : constant, &found)) {
        *m = std::move(found);
        return true;
      }
    }
    done.push_back(item);
    return match_parts(f, pending, done, constant, m);
  }

  static size_t most_items(const Formula& f) {
    double count = 0;
    for (const WeightedPattern& part : f.parts) count += std::max(1.0, std::abs(part.weight));
    return static_cast<size_t>(count) + 1;
  }

  // The operands of the node that computes the item, with their weights.
  bool take_apart(Formula::Kind kind, const Item& item, Items* items, double* factor) const {
    const Node* node = item.value->producer();
    const double w = item.weight;
    if (!node || !is_whole(w)) return false;
    if (kind == Formula::kSum) {
      if (node->is("Add") || node->is("Sub")) {
        items->push_back({w, node->input(0)});
        items->push_back({node->is("Sub") ? -w : w, node->input(1)});
        return true;
      }
      if (node->is("Neg")) items->push_back({-w, node->input(0)});
      return node->is("Neg");
    }
    if (node->is("Mul") || node->is("Div")) {
      items->push_back({w, node->input(0)});
      items->push_back({node->is("Div") ? -w : w, node->input(1)});
    } else if (node->is("Reciprocal")) {
      items->push_back({-w, node->input(0)});
    } else if (node->is("Sqrt")) {
      items->push_back({0.5 * w, node->input(0)});
    } else if (node->is("Neg")) {
      *factor = std::pow(-1.0, w);
      items->push_back({w, node->input(0)});
    } else if (const auto exponent = node->is("Pow") ? number_of(node->input(1), kDepth) : std::nullopt) {
      items->push_back({w * *exponent, node->input(0)});
    } else {
      return false;
    }
    return true;
  }

  static Items merged(const Items& items) {
    Items result;
    for (const Item& item : items) {
      const auto same =
          std::find_if(result.begin(), result.end(), [&](const Item& i) { return i.value == item.value; });
      if (same == result.end()) {
        result.push_back(item);
      } else {
        same->weight += item.weight;
      }
    }
    return result;
  }

  // Matches the formula's parts from `next` on with the items, in any order.
  bool assign(const Formula& f, const Items& items, size_t next, Match* m) const {
    if (next == 0 && items.size() != f.parts.size()) return false;
    if (next == f.parts.size()) return true;
    const WeightedPattern& part = f.parts[next];
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].weight != part.weight) continue;
      Match found = *m;
      Items rest = items;
      rest[i].weight = std::numeric_limits<double>::quiet_NaN();  // matched already
      if (match(part.pattern, items[i].value, &found) && assign(f, rest, next + 1, &found)) {
        *m = std::move(found);
        return true;
      }
    }
    return false;
  }

  // ---- Constants

  bool match_constant(const Formula& f, double constant, Match* m) const {
    if (f.constant_name.empty()) return std::abs(constant - f.constant) <= 4 * precision_ * std::abs(f.constant);
    return std::isfinite(constant) && m->numbers.emplace(f.constant_name, constant).first->second == constant;
  }

  // The value of a constant with one element; some exporters compute √2 and 1/√d in the graph.
  std::optional<double> number_of(const Value* value, int depth) const {
    if (!value || depth == 0 || weights_.count(value)) return std::nullopt;
    if (value->type().is_static() && num_elements(value->type().shape()) != 1) return std::nullopt;
    const Tensor tensor = constant_of(value);
    if (!tensor.empty()) return tensor.size() == 1 ? std::optional(tensor.at(0)) : std::nullopt;
    const Node* node = value->producer();
    if (!node || !node->domain().empty()) return std::nullopt;
    const bool known = node->is("Cast") || node->is("CastLike") || node->is("Identity") || node->is("Sqrt") ||
                       node->is("Reciprocal") || node->is("Mul") || node->is("Div");
    const auto a = known ? number_of(node->input(0), depth - 1) : std::nullopt;
    if (!a) return std::nullopt;
    if (node->is("Sqrt")) return std::sqrt(*a);
    if (node->is("Reciprocal")) return 1 / *a;
    if (!node->is("Mul") && !node->is("Div")) return a;
    const auto b = number_of(node->input(1), depth - 1);
    if (!b) return std::nullopt;
    return node->is("Mul") ? *a * *b : *a / *b;
  }

  const ValueSet& weights_;
  const double precision_;
};

}  // namespace

std::vector<std::string> operators_of(const Pattern& pattern) {
  std::vector<std::string> operators;
  if (pattern->kind == Formula::kOp || pattern->kind == Formula::kMean || pattern->kind == Formula::kReduce) {
    operators.push_back(pattern->name);
  }
  for (const WeightedPattern& part : pattern->parts) {
    for (std::string& op : operators_of(part.pattern)) operators.push_back(std::move(op));
  }
  return operators;
}

bool hands_on(const Node& node) {
  if (!node.is("Identity") && !node.is("Cast") && !node.is("CastLike")) return false;
  const DType dtype = node.input(0)->dtype();
  return dtype != DType::kUndefined && dtype == node.output()->dtype();
}

bool find_match(const Pattern& pattern, Value* value, const ValueSet& weights, Match* match) {
  *match = {};
  return Matcher(weights, value->dtype()).match(pattern, value, match);
}

}  // namespace onnx_train
