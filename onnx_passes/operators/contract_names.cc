#include "onnx_passes/operators/contract_names.h"

#include <algorithm>
#include <cctype>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

bool starts_default(const std::string& text, size_t i) {
  return text[i] == ':' && i + 1 < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[i + 1])) || text[i + 1] == '-');
}

void append_once(const std::string& entry, std::string* text) {
  if (text->find(entry) == std::string::npos) *text += (text->empty() ? "" : ", ") + entry;
}

}  // namespace

std::string sizes_text(const Dims& dims) {
  const std::string text = to_string(TensorType{DType::kFloat, dims});
  return text.substr(text.find('['));
}

std::string readable(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (starts_default(text, i)) {
      ++i;
      while (i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i + 1]))) ++i;
    } else if (text[i] != '@') {
      out += text[i];
    }
  }
  return out;
}

std::optional<int64_t> ContractNames::value_of(const Expression& expression, bool* broken) const {
  std::vector<std::optional<int64_t>> stack;
  const auto binary = [&](auto compute) {
    const auto b = stack.back();
    stack.pop_back();
    std::optional<int64_t>& a = stack.back();
    int64_t result = 0;
    if (!a || !b) {
      a.reset();
    } else if (compute(*a, *b, &result)) {
      *broken = true;
      a.reset();
    } else {
      a = result;
    }
  };
  for (const Expression::Step& step : expression.steps) {
    switch (step.kind) {
      case Expression::kNumber: stack.emplace_back(step.number); break;
      case Expression::kSize: stack.push_back(sizes_[static_cast<size_t>(step.number)]); break;
      case Expression::kCount: {
        const auto& list = lists_[static_cast<size_t>(step.number)];
        stack.push_back(list ? std::optional(static_cast<int64_t>(list->size())) : std::nullopt);
        break;
      }
      case Expression::kAttribute: stack.push_back(attribute(step)); break;
      case Expression::kAdd:
        binary([](int64_t a, int64_t b, int64_t* r) { return __builtin_add_overflow(a, b, r); });
        break;
      case Expression::kSubtract:
        binary([](int64_t a, int64_t b, int64_t* r) { return __builtin_sub_overflow(a, b, r); });
        break;
      case Expression::kMultiply:
        binary([](int64_t a, int64_t b, int64_t* r) { return __builtin_mul_overflow(a, b, r); });
        break;
      case Expression::kDivide:
        binary([](int64_t a, int64_t b, int64_t* r) { return b <= 0 || a % b != 0 || ((*r = a / b), false); });
        break;
      case Expression::kNegate:
        if (stack.back()) stack.back() = -std::max(*stack.back(), -INT64_MAX);
        break;
    }
  }
  return stack.back();
}

std::optional<int64_t> ContractNames::attribute(const Expression::Step& step) const {
  if (!node_.has_attr(step.name)) return step.otherwise;
  return node_.attr(step.name, int64_t{0});
}

bool ContractNames::holds(const Condition& condition) const {
  bool broken = false;
  auto left = value_of(condition.sides[0], &broken);
  for (size_t i = 0; i < condition.comparisons.size() && !broken; ++i) {
    const auto right = value_of(condition.sides[i + 1], &broken);
    if (left && right) {
      const auto comparison = condition.comparisons[i];
      broken = broken || !(comparison == Condition::kEqual  ? *left == *right
                           : comparison == Condition::kLess ? *left < *right
                                                            : *left <= *right);
    }
    left = right;
  }
  return !broken;
}

void ContractNames::describe(const Expression& expression, std::string* text) const {
  for (const Expression::Step& step : expression.steps) {
    const auto at = static_cast<size_t>(step.number);
    if (step.kind == Expression::kSize && sizes_[at]) append_once(concat(wanted_.sizes[at], " = ", *sizes_[at]), text);
    if (step.kind == Expression::kCount && lists_[at])
      append_once(concat("#", wanted_.lists[at], " = ", lists_[at]->size()), text);
    if (step.kind != Expression::kAttribute) continue;
    if (const auto value = attribute(step)) append_once(concat(step.name, " = ", *value), text);
  }
}

void ContractNames::describe_list(int list, std::string* text) const {
  const auto at = static_cast<size_t>(list);
  if (lists_[at]) append_once(concat(wanted_.lists[at], " = ", sizes_text(*lists_[at])), text);
}

}  // namespace onnx_train
