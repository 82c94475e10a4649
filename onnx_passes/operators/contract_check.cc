#include <algorithm>
#include <optional>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/contract_names.h"

namespace onnx_train {
namespace {

using Alternative = ShapeContract::Alternative;

// Upper bound for sizes: bytes of tensors, and sums and products of a few sizes, then fit 64 bits.
constexpr int64_t kMostElements = int64_t{1} << 56;

// Checks that all float types given to `takes` are equal.
struct OneFloat {
  DType type = DType::kUndefined;
  bool holds = true;

  bool takes(DType dtype) {
    if (type == DType::kUndefined && is_float(dtype)) type = dtype;
    holds = holds && dtype == type;
    return holds;
  }
};

// The sizes in an attribute that is a tensor or a list; nothing for other attributes.
std::optional<TensorType> type_of(const onnx::AttributeProto& attribute) {
  switch (attribute.type()) {
    case onnx::AttributeProto::INTS: return TensorType{DType::kInt64, Dims{attribute.ints_size()}};
    case onnx::AttributeProto::FLOATS: return TensorType{DType::kFloat, Dims{attribute.floats_size()}};
    case onnx::AttributeProto::STRINGS: return TensorType{DType::kString, Dims{attribute.strings_size()}};
    case onnx::AttributeProto::TENSOR:
      return TensorType{static_cast<DType>(attribute.t().data_type()),
                        Dims(attribute.t().dims().begin(), attribute.t().dims().end())};
    default: return std::nullopt;
  }
}

// The check of a node against one alternative of its contract. Every step returns false when it has found a `problem`.
class Check {
 public:
  Check(const Alternative& wanted, const Node& node, const Operator& row)
      : wanted_(wanted), node_(node), row_(row), names_(wanted, node) {}

  bool run() {
    for (const Condition& condition : wanted_.conditions) {
      if (condition.of_attributes_alone() && !holds(condition)) return false;
    }
    ++progress;
    if (!has_places("input", wanted_.inputs, node_.inputs())) return false;
    if (wanted_.tells_outputs && !has_places("output", wanted_.outputs, node_.outputs())) return false;
    bind_to_attributes();
    bind(wanted_.inputs, node_.inputs());
    if (!join_broadcasts()) return false;
    if (wanted_.tells_outputs) bind(wanted_.outputs, node_.outputs());
    if (!all_fit("input", wanted_.inputs, node_.inputs())) return false;
    for (const ContractTerm& term : wanted_.attributes) {
      if (!attribute_fits(term)) return false;
    }
    for (const Condition& condition : wanted_.conditions) {
      if (!condition.of_attributes_alone() && !holds(condition)) return false;
    }
    ++progress;
    return !wanted_.tells_outputs || all_fit("output", wanted_.outputs, node_.outputs());
  }

  std::string problem;
  int progress = 0;  // how far the check got: errors report the alternative that fits best

 private:
  using Values = std::vector<Value*>;

  static const ContractTerm* term_at(const std::vector<ContractTerm>& terms, size_t i) {
    if (i < terms.size()) return &terms[i];
    return !terms.empty() && terms.back().variadic ? &terms.back() : nullptr;
  }

  bool has_places(const char* kind, const std::vector<ContractTerm>& terms, const Values& values) {
    const size_t count = std::max(terms.size(), values.size());
    for (size_t i = 0; i < count; ++i) {
      const ContractTerm* term = term_at(terms, i);
      const Value* value = i < values.size() ? values[i] : nullptr;
      const bool is_input = *kind == 'i';
      if (!term) {
        problem = concat("it has ", values.size(), " ", kind, "s; there are ", terms.size(), " at most");
        return false;
      }
      const bool may_lack = term->optional || term->left_out || (term->variadic && (i >= values.size() || !is_input));
      if (!value && !may_lack) {
        problem = concat("its ", kind, " ", i, " is missing; it must be ", readable(term->text));
        return false;
      }
      if (value && term->left_out) {
        problem = concat("its ", kind, " ", i, ", '", value->name(), "', must be left out");
        return false;
      }
      if (value && !is_countable(kind, i, *value)) return false;
    }
    ++progress;
    return true;
  }

  bool is_countable(const char* kind, size_t i, const Value& value) {
    if (!value.has_rank()) return true;
    int64_t count = 1;
    for (const Dim& dim : *value.type().dims) {
      if (!dim.known()) continue;
      if (dim.value() < 0 || __builtin_mul_overflow(count, std::max<int64_t>(dim.value(), 1), &count) ||
          count > kMostElements) {
        problem = concat("its ", kind, " ", i, ", '", value.name(), "', is ", to_string(value.type()),
                         dim.value() < 0 ? "; no size may be negative" : "; that is more than memory can hold");
        return false;
      }
    }
    return true;
  }

  // ---- Names

  // "H = @hidden_size" defines H before any tensor does.
  void bind_to_attributes() {
    for (const Condition& condition : wanted_.conditions) {
      if (condition.comparisons != std::vector{Condition::kEqual} || !condition.sides[0].is_name()) continue;
      bool broken = false;
      const auto value = names_.value_of(condition.sides[1], &broken);
      if (!broken) names_.size(condition.sides[0].steps[0].number) = value;
    }
  }

  void bind(const std::vector<ContractTerm>& terms, const Values& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const ContractTerm* term = term_at(terms, i);
      if (!term || !values[i] || !values[i]->has_rank() || term->one_element) continue;
      const Dims& dims = *values[i]->type().dims;
      const auto list_at = term->list_at();
      const size_t fixed = term->dims.size() - (list_at ? 1 : 0);
      if (dims.size() < fixed || (!list_at && dims.size() > fixed)) continue;
      const size_t in_list = dims.size() - fixed;
      for (size_t k = 0, at = 0; k < term->dims.size(); ++k) {
        const DimTerm& dim = term->dims[k];
        if (dim.kind == DimTerm::kList) {
          if (dim.list >= 0)
            bind_list(dim, {dims.begin() + static_cast<std::ptrdiff_t>(at),
                            dims.begin() + static_cast<std::ptrdiff_t>(at + in_list)});
          at += in_list;
          continue;
        }
        if (dim.kind == DimTerm::kExpression && dim.expression.is_name() && dims[at].known()) {
          std::optional<int64_t>& size = names_.size(dim.expression.steps[0].number);
          if (!size) size = dims[at].value();
        }
        ++at;
      }
    }
  }

  void bind_list(const DimTerm& dim, Dims dims) {
    std::optional<Dims>& list = names_.list(dim.list);
    if (!dim.broadcasts && !list) list = std::move(dims);
  }

  // Lists (~S...) that inputs broadcast to but none has: their value is the broadcast of these inputs.
  bool join_broadcasts() {
    for (int list = 0; list < static_cast<int>(wanted_.lists.size()); ++list) {
      if (names_.list(list)) continue;
      Dims joined;
      bool known = broadcasting_terms(list) > 1, any = false;
      for (size_t i = 0; known && i < node_.inputs().size(); ++i) {
        const ContractTerm* term = term_at(wanted_.inputs, i);
        const Value* value = node_.input(static_cast<int>(i));
        if (!term || !value) continue;
        const auto at = term->list_at();
        if (!at || term->dims[*at].list != list || !term->dims[*at].broadcasts) continue;
        any = true;
        known = value->has_rank() && value->rank() + 1 >= static_cast<int64_t>(term->dims.size());
        if (known && !join(list_of(*term, *at, *value), &joined)) {
          problem = concat("its input ", i, ", '", value->name(), "', is ", to_string(value->type()),
                           "; it does not broadcast with those before it, to ", sizes_text(joined));
          return false;
        }
      }
      if (any && known) names_.list(list) = std::move(joined);
    }
    return true;
  }

  int64_t broadcasting_terms(int list) const {
    return std::count_if(wanted_.inputs.begin(), wanted_.inputs.end(), [list](const ContractTerm& term) {
      const auto at = term.list_at();
      return at && term.dims[*at].list == list && term.dims[*at].broadcasts;
    });
  }

  static Dims list_of(const ContractTerm& term, size_t at, const Value& value) {
    const Dims& dims = *value.type().dims;
    const size_t after = term.dims.size() - 1 - at;
    return {dims.begin() + static_cast<std::ptrdiff_t>(at), dims.end() - static_cast<std::ptrdiff_t>(after)};
  }

  static bool join(const Dims& more, Dims* joined) {
    if (more.size() > joined->size()) joined->insert(joined->begin(), more.size() - joined->size(), Dim(int64_t{1}));
    for (size_t i = 0; i < more.size(); ++i) {
      const Dim& a = more[more.size() - 1 - i];
      Dim& b = (*joined)[joined->size() - 1 - i];
      if (b.known() && b.value() == 1) {
        b = a;
      } else if (a.known() && a.value() != 1) {
        if (b.known() && b.value() != a.value()) return false;
        b = a;
      }
    }
    return true;
  }

  // ---- Terms

  bool all_fit(const char* kind, const std::vector<ContractTerm>& terms, const Values& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (!values[i]) continue;
      const ContractTerm& term = *term_at(terms, i);
      const TensorType& type = values[i]->type();
      if (!type_fits(term, type.dtype, may_be_narrow(kind, i)) || !fits(term, type)) {
        problem = concat("its ", kind, " ", i, ", '", values[i]->name(), "', is ", to_string(type), "; it must be ",
                         readable(term.text), values_text(term));
        return false;
      }
      ++progress;
    }
    return true;
  }

  bool attribute_fits(const ContractTerm& term) {
    const onnx::AttributeProto* attribute = node_.find_attr(term.name);
    if (!attribute && term.optional) return true;
    const auto type = attribute ? type_of(*attribute) : std::nullopt;
    if (!type || !fits(term, *type)) {
      const std::string found = !attribute ? "missing" : type ? to_string(*type) : "of another kind";
      problem =
          concat("its attribute ", term.name, " is ", found, "; it must be ", readable(term.text), values_text(term));
      return false;
    }
    ++progress;
    return true;
  }

  bool fits(const ContractTerm& term, const TensorType& type) {
    if (!term.has_shape || !type.has_rank()) return true;
    const Dims& dims = *type.dims;
    if (term.one_element) {
      return std::all_of(dims.begin(), dims.end(), [](const Dim& d) { return !d.known() || d.value() == 1; });
    }
    const auto list_at = term.list_at();
    const size_t fixed = term.dims.size() - (list_at ? 1 : 0);
    if (dims.size() < fixed || (!list_at && dims.size() > fixed)) return false;
    const size_t in_list = dims.size() - fixed;
    size_t at = 0;
    for (const DimTerm& dim : term.dims) {
      if (dim.kind == DimTerm::kList) {
        if (!list_fits(dim, dims, at, in_list)) return false;
        at += in_list;
        continue;
      }
      if (dim.kind == DimTerm::kExpression && dims[at].known()) {
        bool broken = false;
        const auto value = names_.value_of(dim.expression, &broken);
        if (broken || (value && *value != dims[at].value())) return false;
      }
      ++at;
    }
    return true;
  }

  bool list_fits(const DimTerm& dim, const Dims& dims, size_t at, size_t count) {
    const std::optional<Dims>* list = dim.list < 0 ? nullptr : &names_.list(dim.list);
    if (!list || !*list) return true;
    const Dims& wanted = **list;
    if (dim.broadcasts ? count > wanted.size() : count != wanted.size()) return false;
    for (size_t i = 0; i < count; ++i) {
      const Dim &found = dims[at + count - 1 - i], &want = wanted[wanted.size() - 1 - i];
      if (!found.known() || !want.known() || (dim.broadcasts && found.value() == 1)) continue;
      if (found.value() != want.value()) return false;
    }
    return true;
  }

  bool may_be_narrow(const char* kind, size_t i) const {
    const std::vector<int>& narrow = *kind == 'i' ? row_.narrow_inputs : row_.narrow_outputs;
    return *row_.domain && std::find(narrow.begin(), narrow.end(), static_cast<int>(i)) != narrow.end();
  }

  bool type_fits(const ContractTerm& term, DType dtype, bool may_be_narrow) {
    if (dtype == DType::kUndefined) return true;
    switch (term.type) {
      case TermType::kAny: return true;
      case TermType::kFloat: return is_float(dtype);
      case TermType::kInt32: return dtype == DType::kInt32;
      case TermType::kInt64: return dtype == DType::kInt64;
      case TermType::kIndex: return dtype == DType::kInt32 || dtype == DType::kInt64;
      case TermType::kBool: return dtype == DType::kBool;
      case TermType::kUint64: return dtype == DType::kUint64;
      case TermType::kDefault: break;
    }
    if (row_.types == ElementTypes::kOfSchema) return true;
    const bool fits_stored = stored_.takes(dtype);
    return computed_.takes(may_be_narrow && (dtype == DType::kBFloat16 || dtype == DType::kFloat16) ? DType::kFloat
                                                                                                    : dtype) ||
           fits_stored;
  }

  bool holds(const Condition& condition) {
    if (names_.holds(condition)) return true;
    std::string known;
    for (const Expression& side : condition.sides) names_.describe(side, &known);
    problem = concat("it must have ", readable(condition.text), known.empty() ? "" : "; here ", known);
    return false;
  }

  // " with D = 1, H = 4": the values of the names in a term.
  std::string values_text(const ContractTerm& term) const {
    std::string text;
    for (const DimTerm& dim : term.dims) {
      if (dim.kind == DimTerm::kExpression) names_.describe(dim.expression, &text);
      if (dim.kind == DimTerm::kList && dim.list >= 0) names_.describe_list(dim.list, &text);
    }
    const bool is_typed = term.type == TermType::kDefault && row_.types == ElementTypes::kOneFloat;
    if (is_typed && computed_.type != DType::kUndefined)
      text += concat(text.empty() ? "" : ", ", "of ", name(computed_.type));
    return text.empty() ? "" : " with " + text;
  }

  const Alternative& wanted_;
  const Node& node_;
  const Operator& row_;
  OneFloat stored_, computed_;  // the types as stored, and with float32 instead of narrow types where those are allowed
  ContractNames names_;
};

}  // namespace

namespace {

// The place of a term of this name; "one/other" has two names.
int place_of(const std::vector<ContractTerm>& terms, std::string_view name) {
  for (size_t i = 0; i < terms.size(); ++i) {
    for (std::string_view names = terms[i].name; !names.empty();) {
      const size_t end = std::min(names.find('/'), names.size());
      if (names.substr(0, end) == name) return static_cast<int>(i);
      names.remove_prefix(std::min(end + 1, names.size()));
    }
  }
  return -1;
}

int place_of(const std::vector<std::shared_ptr<const Alternative>>& alternatives,
             std::vector<ContractTerm> Alternative::*terms, std::string_view name) {
  int place = -1;
  for (const auto& alternative : alternatives) {
    const int here = place_of((*alternative).*terms, name);
    if (here >= 0 && place >= 0 && here != place) fail("a shape contract has two places for '", name, "'");
    place = std::max(place, here);
  }
  return place;
}

// The size's name where the expression is that alone, or that times or through an attribute that is 1.
char letter_of(const Alternative& alternative, const DimTerm& dim, const Node& node) {
  if (dim.kind != DimTerm::kExpression || dim.expression.steps.empty()) return '.';
  const std::vector<Expression::Step>& steps = dim.expression.steps;
  if (steps[0].kind != Expression::kSize) return '.';
  const std::string& name = alternative.sizes[static_cast<size_t>(steps[0].number)];
  const auto is_one = [&](const Expression::Step& step) {
    return step.kind == Expression::kAttribute && node.attr(step.name, step.otherwise.value_or(0)) == 1;
  };
  const bool is_alone = steps.size() == 1 || (steps.size() == 3 && is_one(steps[1]));
  return is_alone && name.size() == 1 ? name[0] : '.';
}

std::vector<std::string> axes_of(const Alternative& alternative, const std::vector<ContractTerm>& terms,
                                 const Node& node) {
  std::vector<std::string> axes;
  for (const ContractTerm& term : terms) {
    std::string letters;
    for (size_t i = 0; i < term.list_at().value_or(term.dims.size()); ++i)
      letters += letter_of(alternative, term.dims[i], node);
    axes.push_back(std::move(letters));
  }
  return axes;
}

}  // namespace

std::vector<std::string> ShapeContract::axes_of_inputs(const Node& node) const {
  return axes_of(*alternatives_[0], alternatives_[0]->inputs, node);
}
std::vector<std::string> ShapeContract::axes_of_outputs(const Node& node) const {
  return axes_of(*alternatives_[0], alternatives_[0]->outputs, node);
}

int ShapeContract::input(std::string_view name) const { return place_of(alternatives_, &Alternative::inputs, name); }
int ShapeContract::output(std::string_view name) const { return place_of(alternatives_, &Alternative::outputs, name); }

void ShapeContract::check(const Node& node, const Operator& row) const {
  std::string problem;
  int furthest = -1;
  for (const auto& alternative : alternatives_) {
    Check check(*alternative, node, row);
    if (check.run()) return;
    if (check.progress > furthest) problem = std::move(check.problem), furthest = check.progress;
  }
  fail(node.label(), ": ", problem);
}

}  // namespace onnx_train
