#include "onnx_passes/inference/elements.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "onnx_passes/inference/cut_shapes.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/moved_elements.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/resampling.h"

namespace onnx_train {
namespace {

const Dim kZero(int64_t{0});
const Dim kOne(int64_t{1});

// A size as a product: 8*batch. A symbol that is not a name or a product of names (torch writes "s0 + 1") is one
// factor.
struct Product {
  int64_t factor = 1;
  std::vector<std::string> symbols;  // sorted
};

bool is_open(const Dim& dim) { return !dim.known() && dim.symbol().empty(); }

// Multiplies by `dim`; false if it is unknown or the factor overflows.
bool multiply(const Dim& dim, Product* product) {
  if (dim.known()) return !__builtin_mul_overflow(product->factor, dim.value(), &product->factor);
  if (is_open(dim)) return false;
  const std::string& text = dim.symbol();
  const bool plain = std::all_of(text.begin(), text.end(),
                                 [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '*' || c == '.'; });
  for (size_t start = 0; start <= text.size();) {
    const size_t end = plain ? std::min(text.find('*', start), text.size()) : text.size();
    const std::string part = text.substr(start, end - start);
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error == std::errc() && stop == part.data() + part.size()) {
      if (__builtin_mul_overflow(product->factor, number, &product->factor)) return false;
    } else {
      product->symbols.push_back(part);
    }
    start = end + 1;
  }
  std::sort(product->symbols.begin(), product->symbols.end());
  return true;
}

Dim to_dim(const Product& product) {
  if (product.symbols.empty() || product.factor == 0) return Dim(product.factor);
  std::string text = product.factor == 1 ? "" : std::to_string(product.factor) + "*";
  for (const std::string& symbol : product.symbols) text += symbol + "*";
  text.pop_back();
  return Dim(text);
}

// Divides the number of elements of `from` by the sizes in `to` that are not open.
std::optional<Dim> quotient(const Dims& from, const Dims& to) {
  Product above, below;
  for (const Dim& d : from) {
    if (!multiply(d, &above)) return std::nullopt;
  }
  for (const Dim& d : to) {
    if (!is_open(d) && !multiply(d, &below)) return std::nullopt;
  }
  if (below.factor <= 0 || above.factor % below.factor != 0) return std::nullopt;
  above.factor /= below.factor;
  for (const std::string& symbol : below.symbols) {
    const auto found = std::find(above.symbols.begin(), above.symbols.end(), symbol);
    if (found == above.symbols.end()) return std::nullopt;
    above.symbols.erase(found);
  }
  return to_dim(above);
}

// Div truncates, like C; it does not round down.
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
  if (op == "LessOrEqual") return a <= b;
  if (op == "GreaterOrEqual") return a >= b;
  if (op == "Xor") return (a != 0) != (b != 0);
  if (op == "And") return a && b;
  if (op == "Or") return a || b;
  if (b == 0 || b == -1) return std::nullopt;  // division by zero, overflow
  if (op == "Div") return a / b;
  if (op == "Mod") return a % b != 0 && (a < 0) != (b < 0) ? a % b + b : a % b;
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
  if (op == "Div" && b == kOne) return a;
  if (op == "Mul") {
    Product product;
    return multiply(a, &product) && multiply(b, &product) ? to_dim(product) : Dim();
  }
  if (op == "And" && (a == kZero || b == kZero)) return kZero;
  if (op == "Or" && (a == kOne || b == kOne)) return kOne;
  if (op == "Equal") {
    if (a.same(b)) return kOne;
    const Dim& number = a.known() ? a : b;
    const Dim& other = a.known() ? b : a;
    // A symbol is a size, so it is not negative; an unknown element may be anything.
    if (number.known() && number.value() < 0 && !other.symbol().empty()) return kZero;
  }
  return {};
}

// The element of a broadcast operand at `i`.
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

// `count` copies of one element, where `shape` holds `count`.
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
  for (int64_t i = first; by > 0 ? i < last : (by < 0 && i > last);) {
    if (static_cast<int64_t>(result.size()) == kMaxElements || i > INT32_MAX || i < -INT32_MAX) return std::nullopt;
    result.emplace_back(i);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return result;
}

std::optional<Dims> reduce_product(const Node& node) {
  const auto x = elements_of(node.input(0));
  if (!x) return std::nullopt;
  Product product;
  for (const Dim& d : *x) {
    if (!multiply(d, &product)) return Dims{Dim()};
  }
  return Dims{to_dim(product)};
}

// Casts to int64: integers with known contents, and small float constants.
std::optional<Dims> cast(const Node& node) {
  const Value* x = node.input(0);
  if (!x || node.output()->dtype() != DType::kInt64) return std::nullopt;
  if (is_integer(x->dtype())) return elements_of(x);
  const bool small = is_float(x->dtype()) && x->type().is_static() && num_elements(x->type().shape()) <= kMaxElements;
  const Tensor constant = small ? constant_of(x) : Tensor();
  if (constant.empty()) return std::nullopt;
  Dims result;
  for (int64_t i = 0; i < constant.size(); ++i) {
    if (!(std::abs(constant.at(i)) < 1e15)) return std::nullopt;
    result.emplace_back(static_cast<int64_t>(constant.at(i)));
  }
  return result;
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

// The axes of a Resize that keep their size, take another known size, or are multiplied by a number.
void refine_resize(Node* node) {
  const Value* x = node->input(0);
  if (!x->has_rank() || x->rank() != node->output()->rank()) return;
  Dims dims = *node->output()->type().dims;
  const Dims& from = *x->type().dims;
  const std::vector<int64_t> axes = resize_axes(*node, x->rank());
  const auto sizes = resize_has_input(*node, 3) ? elements_of(node->input(3)) : std::nullopt;
  const Tensor scales = resize_has_input(*node, 2) ? constant_of(node->input(2)) : Tensor();
  const bool stretches = node->attr("keep_aspect_ratio_policy", "stretch") == "stretch";
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto found = std::find(axes.begin(), axes.end(), static_cast<int64_t>(i));
    const auto at = static_cast<size_t>(found - axes.begin());
    const bool scaled = found != axes.end() && scales.size() == static_cast<int64_t>(axes.size());
    const double scale = scaled ? scales.at(static_cast<int64_t>(at)) : 1;
    if (scaled && from[i].known() && dims[i].known()) dims[i] = scaled_size(from[i].value(), scale);
    if (!is_open(dims[i])) continue;
    if (found == axes.end()) {
      dims[i] = from[i];
    } else if (sizes && stretches && sizes->size() == axes.size()) {
      dims[i] = (*sizes)[at];
    } else if (scaled) {
      Product product;
      const bool is_whole = scale >= 1 && scale < 1e6 && scale == std::floor(scale);
      if (is_whole && multiply(from[i], &product) && multiply(Dim(static_cast<int64_t>(scale)), &product))
        dims[i] = to_dim(product);
    }
  }
  node->output()->set_type({node->output()->dtype(), std::move(dims)});
}

// The output has the shape that input 2 holds, as far as it is known.
void refine_unpool(Node* node) {
  const auto sizes = node->num_inputs() > 2 ? elements_of(node->input(2)) : std::nullopt;
  if (sizes) node->output()->set_type({node->output()->dtype(), *sizes});
}

// ONNX's inference gives the axes up where the length of the one that is cut is a name.
void refine_top_k(Node* node) {
  const TensorType& x = node->input(0)->type();
  const auto k = elements_of(node->input(1));
  const int64_t rank = x.dims ? std::ssize(*x.dims) : 0, axis = node->attr("axis", int64_t{-1});
  if (!k || k->size() != 1 || axis < -rank || axis >= rank) return;
  Dims dims = *x.dims;
  dims[static_cast<size_t>(axis < 0 ? axis + rank : axis)] = k->front();
  for (Value* output : node->outputs()) {
    if (output && !output->type().is_static()) output->set_type({output->dtype(), dims});
  }
}

}  // namespace

void refine_shape(Node* node) {
  Value* output = node->output();
  if (node->is("TopK") && node->num_inputs() == 2 && node->input(0)) return refine_top_k(node);
  if (node->is("MaxUnpool") && output && !output->type().is_static()) return refine_unpool(node);
  if (node->is("Resize") && output && output->has_rank() && node->input(0)) return refine_resize(node);
  if (node->is("Slice") && output && output->has_rank() && node->input(0)) return refine_slice(node);
  if (node->is("Pad") && output && output->has_rank() && node->input(0)) return refine_pad(node);
  const bool handled = node->is("Reshape") || node->is("Flatten") || node->is("Range");
  if (!handled || !output || !output->has_rank() || !node->input(0)) return;
  TensorType type = output->type();
  if (std::count_if(type.dims->begin(), type.dims->end(), is_open) != 1) return;
  Dim& open = *std::find_if(type.dims->begin(), type.dims->end(), is_open);
  if (node->is("Range")) {
    const auto start = elements_of(node->input(0)), limit = elements_of(node->input(1)),
               step = elements_of(node->input(2));
    const bool counts = start && limit && step && start->size() == 1 && limit->size() == 1 && step->size() == 1 &&
                        start->front() == kZero && step->front() == kOne;
    if (!counts || limit->front().known()) return;
    open = limit->front();
  } else {
    const auto size = node->input(0)->has_rank() ? quotient(*node->input(0)->type().dims, *type.dims) : std::nullopt;
    if (!size) return;
    open = *size;
  }
  output->set_type(std::move(type));
}

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
  static const std::vector<std::string> kElementWise = {
      "Add",  "Sub", "Mul", "Div",  "Mod",     "Min",         "Max",
      "And",  "Or",  "Xor", "Less", "Greater", "LessOrEqual", "GreaterOrEqual",
      "Equal"};
  const Value* output = node.output();
  const bool moves = is_view(node) || node.is("Slice") || node.is("Transpose");  // of matrices, too
  const bool small = output && output->has_rank() && output->rank() <= (moves ? 2 : 1) && node.domain().empty();
  const bool integer = small && (output->dtype() == DType::kInt64 || output->dtype() == DType::kInt32 ||
                                 output->dtype() == DType::kBool);
  if (!integer) return std::nullopt;
  std::optional<Dims> result;
  if (node.is("Constant")) {
    result = elements_of(constant_of(output));
  } else if (std::find(kElementWise.begin(), kElementWise.end(), node.op()) != kElementWise.end()) {
    result = element_wise(node);
  } else if (is_view(node)) {
    result = elements_of(node.input(0));
  } else if (node.is("Cast") || node.is("CastLike")) {
    result = cast(node);
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
  } else if (moves) {
    result = moved_elements(node);
  }
  const bool fits = !output->type().is_static()
                        ? output->rank() <= 1
                        : result && static_cast<int64_t>(result->size()) == num_elements(output->type().shape());
  return fits ? result : std::nullopt;
}

}  // namespace onnx_train
