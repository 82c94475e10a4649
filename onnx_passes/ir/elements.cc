#include "onnx_passes/ir/elements.h"

#include <algorithm>

#include "onnx_passes/ir/inference.h"

namespace onnx_train {
namespace {

const Dim kZero(int64_t{0});
const Dim kOne(int64_t{1});

// Div cuts, as C does; it does not round down.
std::optional<int64_t> compute(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "Add") return __builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result);
  if (op == "Sub") return __builtin_sub_overflow(a, b, &result) ? std::nullopt : std::optional(result);
  if (op == "Mul") return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
  if (op == "Min") return std::min(a, b);
  if (op == "Max") return std::max(a, b);
  if (op == "Equal") return a == b;
  if (op == "Less") return a < b;
  if (op == "Greater") return a > b;
  if (op == "And") return a && b;
  if (op == "Or") return a || b;
  if (b == 0 || b == -1) return std::nullopt;  // no division by zero, no overflow
  if (op == "Div") return a / b;
  if (op == "Mod") return ((a % b) + b) % b;
  return std::nullopt;
}

Dim combine(const Node& node, const Dim& a, const Dim& b) {
  const std::string& op = node.op();
  if (a.known() && b.known()) {
    if (op == "Mod" && node.attr("fmod", 0) != 0) return {};
    const auto result = compute(op, a.value(), b.value());
    return result ? Dim(*result) : Dim();
  }
  if ((op == "Add" || op == "Sub") && b == kZero) return a;
  if (op == "Add" && a == kZero) return b;
  if ((op == "Mul" || op == "Div") && b == kOne) return a;
  if (op == "Mul" && a == kOne) return b;
  if (op == "Equal") {
    if (a.same(b)) return kOne;
    const Dim& number = a.known() ? a : b;
    const Dim& other = a.known() ? b : a;
    // A symbol stands for a size; an element that is not known may be anything.
    if (number.known() && number.value() < 0 && !other.symbol().empty()) return kZero;
  }
  return {};
}

// One operand's element at `i`, as broadcasting sees it.
const Dim& at(const Dims& dims, size_t i) { return dims.size() == 1 ? dims[0] : dims[i]; }

std::optional<Dims> element_wise(const Node& node) {
  const auto a = elements_of(node.input(0)), b = elements_of(node.input(1));
  if (!a || !b || node.num_inputs() != 2 || a->empty() || b->empty()) return std::nullopt;
  const size_t size = std::max(a->size(), b->size());
  if ((a->size() != size && a->size() != 1) || (b->size() != size && b->size() != 1)) return std::nullopt;
  Dims result;
  for (size_t i = 0; i < size; ++i) result.push_back(combine(node, at(*a, i), at(*b, i)));
  return result;
}

std::optional<Dims> where(const Node& node) {
  const auto condition = elements_of(node.input(0)), a = elements_of(node.input(1)), b = elements_of(node.input(2));
  if (!condition || !a || !b) return std::nullopt;
  const size_t size = std::max({condition->size(), a->size(), b->size()});
  Dims result;
  for (const Dims* dims : {&*condition, &*a, &*b}) {
    if (dims->size() != size && dims->size() != 1) return std::nullopt;
  }
  for (size_t i = 0; i < size; ++i) {
    const Dim& c = at(*condition, i);
    result.push_back(c.known() ? at(c.value() != 0 ? *a : *b, i) : Dim());
  }
  return result;
}

// `count` times the same element, where `shape` holds the one size.
std::optional<Dims> repeat(const Value* shape, const Dim& element) {
  const auto sizes = elements_of(shape);
  if (!sizes || sizes->size() > 1) return std::nullopt;
  const Dim count = sizes->empty() ? kOne : (*sizes)[0];
  if (!count.known() || count.value() < 0 || count.value() > kMaxElements) return std::nullopt;
  return Dims(static_cast<size_t>(count.value()), element);
}

std::optional<Dims> constant_of_shape(const Node& node) {
  const Tensor fill = node.attr_tensor("value");
  if (fill.size() != 1 || fill.dtype() != DType::kInt64) return std::nullopt;
  return repeat(node.input(0), Dim(fill.to_ints()[0]));
}

std::optional<Dims> expand(const Node& node) {
  const auto x = elements_of(node.input(0));
  if (!x || x->size() != 1) return x;
  const auto repeated = repeat(node.input(1), (*x)[0]);
  return repeated && !repeated->empty() ? repeated : std::nullopt;
}

std::optional<Dims> range(const Node& node) {
  const auto start = elements_of(node.input(0)), limit = elements_of(node.input(1)), step = elements_of(node.input(2));
  for (const auto* dims : {&start, &limit, &step}) {
    if (!*dims || (*dims)->size() != 1 || !(*dims)->front().known()) return std::nullopt;
  }
  const int64_t first = start->front().value(), last = limit->front().value(), by = step->front().value();
  Dims result;
  for (int64_t i = first; by > 0 ? i < last : (by < 0 && i > last); i += by) {
    if (static_cast<int64_t>(result.size()) == kMaxElements || std::abs(i) > INT32_MAX) return std::nullopt;
    result.emplace_back(i);
  }
  return result;
}

std::optional<Dims> reduce_product(const Node& node) {
  const auto x = elements_of(node.input(0));
  if (!x) return std::nullopt;
  int64_t total = 1;
  for (const Dim& d : *x) {
    if (!d.known() || __builtin_mul_overflow(total, d.value(), &total)) return Dims{Dim()};
  }
  return Dims{Dim(total)};
}

std::optional<Dims> size(const Node& node) {
  const Value* x = node.input(0);
  return x && x->type().is_static() ? std::optional(Dims{num_elements(x->type().shape())}) : std::nullopt;
}

std::optional<Dims> logical_not(const Node& node) {
  auto x = elements_of(node.input(0));
  if (!x) return std::nullopt;
  for (Dim& d : *x) d = d.known() ? (d.value() == 0 ? kOne : kZero) : Dim();
  return x;
}

}  // namespace

std::optional<Dims> elements_of(const Tensor& tensor) {
  const DType dtype = tensor.dtype();
  const bool integer = dtype == DType::kInt64 || dtype == DType::kInt32 || dtype == DType::kBool;
  if (!integer || tensor.shape().size() > 1 || tensor.size() > kMaxElements) return std::nullopt;
  Dims dims;
  for (int64_t v : tensor.to_ints()) dims.emplace_back(v);
  return dims;
}

std::optional<Dims> elements_of(const Value* value) {
  if (!value) return std::nullopt;
  if (value->elements()) return value->elements();
  if (!value->is_initializer() || !value->type().is_static() || value->rank() > 1) return std::nullopt;
  if (num_elements(value->type().shape()) > kMaxElements) return std::nullopt;
  return elements_of(constant_of(value));
}

std::optional<Dims> follow_elements(const Node& node) {
  static const std::vector<std::string> kElementWise = {"Add", "Sub",  "Mul",     "Div", "Mod", "Min",
                                                        "Max", "Less", "Greater", "And", "Or",  "Equal"};
  static const std::vector<std::string> kCopies = {"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast"};
  const Value* output = node.output();
  const bool small = output && output->has_rank() && output->rank() <= 1 && node.domain().empty();
  const bool integer = small && (output->dtype() == DType::kInt64 || output->dtype() == DType::kInt32 ||
                                 output->dtype() == DType::kBool);
  if (!integer) return std::nullopt;
  const auto is_one_of = [&](const std::vector<std::string>& ops) {
    return std::find(ops.begin(), ops.end(), node.op()) != ops.end();
  };
  std::optional<Dims> result;
  if (node.is("Constant")) {
    result = elements_of(constant_of(output));
  } else if (is_one_of(kElementWise)) {
    result = element_wise(node);
  } else if (is_one_of(kCopies)) {
    const bool exact =
        !node.is("Cast") || (node.input(0) && is_integer(node.input(0)->dtype()) && output->dtype() == DType::kInt64);
    result = exact ? elements_of(node.input(0)) : std::nullopt;
  } else if (node.is("Where")) {
    result = where(node);
  } else if (node.is("ConstantOfShape")) {
    result = constant_of_shape(node);
  } else if (node.is("Expand")) {
    result = expand(node);
  } else if (node.is("Range")) {
    result = range(node);
  } else if (node.is("ReduceProd")) {
    result = reduce_product(node);
  } else if (node.is("Size")) {
    result = size(node);
  } else if (node.is("Not")) {
    result = logical_not(node);
  }
  const Dim length = output->rank() == 0 ? kOne : (*output->type().dims)[0];
  if (result && length.known() && static_cast<int64_t>(result->size()) != length.value()) return std::nullopt;
  return result;
}

}  // namespace onnx_train
