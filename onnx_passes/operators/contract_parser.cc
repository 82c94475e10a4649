#include <algorithm>
#include <cctype>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/contract_terms.h"

namespace onnx_train {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// A recursive-descent parser of one contract.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::vector<std::shared_ptr<const ShapeContract::Alternative>> run() {
    std::vector<std::shared_ptr<const ShapeContract::Alternative>> alternatives;
    do {
      made_ = {};
      read_terms(&made_.inputs);
      made_.tells_outputs = take("->");
      if (made_.tells_outputs) read_terms(&made_.outputs);
      if (take("where")) read_conditions();
      alternatives.push_back(std::make_shared<const ShapeContract::Alternative>(std::move(made_)));
    } while (take("|"));
    if (at_ < text_.size()) wrong("the end");
    return alternatives;
  }

 private:
  [[noreturn]] void wrong(const char* wanted) const {
    fail("the shape contract '", text_, "' has '", text_.substr(at_), "' where ", wanted, " should be");
  }
  void skip_spaces() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool sees(std::string_view token) {
    skip_spaces();
    if (text_.substr(at_, token.size()) != token) return false;
    const size_t end = at_ + token.size();
    return !is_word(token.back()) || end == text_.size() || !is_word(text_[end]);
  }
  bool take(std::string_view token) {
    if (!sees(token)) return false;
    at_ += token.size();
    return true;
  }
  void want(std::string_view token, const char* what) {
    if (!take(token)) wrong(what);
  }
  std::string word() {
    skip_spaces();
    const size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    if (begin == at_) wrong("a name");
    return std::string(text_.substr(begin, at_ - begin));
  }
  bool sees_word() {
    skip_spaces();
    return at_ < text_.size() && is_word(text_[at_]);
  }
  static int place_of(const std::string& name, std::vector<std::string>* names) {
    const auto found = std::find(names->begin(), names->end(), name);
    if (found == names->end()) names->push_back(name);
    return static_cast<int>(std::find(names->begin(), names->end(), name) - names->begin());
  }

  void read_terms(std::vector<ContractTerm>* terms) {
    while (!sees("where") && !sees("->") && !sees("|") && (sees("@") || sees_word())) {
      ContractTerm term = read_term();
      (term.attribute ? &made_.attributes : terms)->push_back(std::move(term));
    }
  }

  ContractTerm read_term() {
    skip_spaces();
    const size_t begin = at_;
    ContractTerm term;
    term.attribute = take("@");
    term.name = word();
    while (take("/")) term.name += concat('/', word());
    term.optional = take("?");
    term.left_out = take("!");
    term.variadic = take("*");
    if (take(":")) term.type = type(word());
    term.has_shape = take("[");
    term.one_element = term.has_shape && take("]");
    if (term.has_shape && !term.one_element) {
      do {
        term.dims.push_back(read_dim());
      } while (take(","));
      want("]", "] or a comma");
    }
    term.text = text_.substr(begin, at_ - begin);
    const auto is_list = [](const DimTerm& dim) { return dim.kind == DimTerm::kList; };
    if (std::count_if(term.dims.begin(), term.dims.end(), is_list) > 1) wrong("a shape with one list of sizes");
    return term;
  }

  TermType type(const std::string& name) const {
    if (name == "any") return TermType::kAny;
    if (name == "float") return TermType::kFloat;
    if (name == "int32") return TermType::kInt32;
    if (name == "int64") return TermType::kInt64;
    if (name == "index") return TermType::kIndex;
    if (name == "bool") return TermType::kBool;
    if (name == "uint64") return TermType::kUint64;
    fail("the shape contract '", text_, "' names an element type '", name, "'");
  }

  DimTerm read_dim() {
    DimTerm dim;
    dim.broadcasts = take("~");
    skip_spaces();
    size_t end = at_;
    while (end < text_.size() && is_word(text_[end])) ++end;
    if (text_.substr(end, 3) == "...") {
      const std::string name = word();
      at_ += 3;
      dim.kind = DimTerm::kList;
      dim.list = name == "_" ? -1 : place_of(name, &made_.lists);
      return dim;
    }
    if (dim.broadcasts) wrong("a list of sizes");
    if (take("_")) return dim;
    dim.kind = DimTerm::kExpression;
    dim.expression = read_expression();
    return dim;
  }

  Expression read_expression() {
    skip_spaces();
    const size_t begin = at_;
    Expression expression;
    sum(&expression);
    expression.text = text_.substr(begin, at_ - begin);
    while (expression.text.back() == ' ') expression.text.pop_back();
    return expression;
  }
  void sum(Expression* e) {
    product(e);
    for (;;) {
      const bool plus = take("+");
      if (!plus && (sees("->") || !take("-"))) return;
      product(e);
      e->steps.push_back({plus ? Expression::kAdd : Expression::kSubtract});
    }
  }
  void product(Expression* e) {
    factor(e);
    for (;;) {
      const bool times = take("*");
      if (!times && !take("/")) return;
      factor(e);
      e->steps.push_back({times ? Expression::kMultiply : Expression::kDivide});
    }
  }
  void factor(Expression* e) {
    if (take("-")) {
      factor(e);
      e->steps.push_back({Expression::kNegate});
    } else if (take("(")) {
      sum(e);
      want(")", ")");
    } else if (take("#")) {
      e->steps.push_back({Expression::kCount, place_of(word(), &made_.lists)});
    } else if (take("@")) {
      const std::string name = word();
      std::optional<int64_t> otherwise;
      if (take(":")) otherwise = take("-") ? -number() : number();
      e->steps.push_back({Expression::kAttribute, 0, name, otherwise});
    } else if (skip_spaces(); at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      e->steps.push_back({Expression::kNumber, number()});
    } else {
      e->steps.push_back({Expression::kSize, place_of(word(), &made_.sizes)});
    }
  }
  int64_t number() { return std::stoll(word()); }

  void read_conditions() {
    do {
      skip_spaces();
      const size_t begin = at_;
      Condition condition;
      condition.sides.push_back(read_expression());
      for (;;) {
        if (take("=")) {
          condition.comparisons.push_back(Condition::kEqual);
        } else if (take("<=")) {
          condition.comparisons.push_back(Condition::kLessOrEqual);
        } else if (take("<")) {
          condition.comparisons.push_back(Condition::kLess);
        } else {
          break;
        }
        condition.sides.push_back(read_expression());
      }
      if (condition.comparisons.empty()) wrong("a comparison");
      condition.text = text_.substr(begin, at_ - begin);
      while (condition.text.back() == ' ') condition.text.pop_back();
      made_.conditions.push_back(std::move(condition));
    } while (take(","));
  }

  std::string_view text_;
  size_t at_ = 0;
  ShapeContract::Alternative made_;
};

}  // namespace

bool Condition::of_attributes_alone() const {
  for (const Expression& side : sides) {
    for (const Expression::Step& step : side.steps) {
      if (step.kind == Expression::kSize || step.kind == Expression::kCount) return false;
    }
  }
  return true;
}

ShapeContract::ShapeContract(std::string_view text) : alternatives_(Parser(text).run()) {}

}  // namespace onnx_train
