#include "onnx_passes/ir/types.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {

size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kUint8:
    case DType::kInt8:
    case DType::kBool:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2: return 1;
    case DType::kUint16:
    case DType::kInt16:
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kFloat:
    case DType::kInt32:
    case DType::kUint32: return 4;
    case DType::kDouble:
    case DType::kInt64:
    case DType::kUint64: return 8;
    default: fail("tensors of type ", name(dtype), " are not supported here");
  }
}

std::string name(DType dtype) {
  const int number = static_cast<int>(dtype);
  if (!onnx::TensorProto::DataType_IsValid(number)) return concat("type ", number);
  std::string text = onnx::TensorProto::DataType_Name(number);
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool is_float(DType dtype) {
  return dtype == DType::kFloat || dtype == DType::kDouble || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

bool is_integer(DType dtype) {
  switch (dtype) {
    case DType::kUint8:
    case DType::kInt8:
    case DType::kUint16:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUint32:
    case DType::kUint64: return true;
    default: return false;
  }
}

bool TensorType::is_static() const {
  return dims && std::all_of(dims->begin(), dims->end(), [](const Dim& d) { return d.known(); });
}

Shape TensorType::shape() const {
  if (!dims) fail("the shape of a ", name(dtype), " tensor is asked for and not known");
  Shape shape;
  for (const Dim& dim : *dims) shape.push_back(dim.value());
  return shape;
}

const std::string Dim::kNone;

bool same(const TensorType& a, const TensorType& b) {
  if (a.dtype == DType::kUndefined || a.dtype != b.dtype || !a.dims || !b.dims || a.rank() != b.rank()) return false;
  for (size_t i = 0; i < a.dims->size(); ++i) {
    if (!(*a.dims)[i].same((*b.dims)[i])) return false;
  }
  return true;
}

std::string to_string(const TensorType& type) {
  if (!type.dims) return name(type.dtype);
  std::ostringstream out;
  out << name(type.dtype) << '[';
  const char* comma = "";
  for (const Dim& dim : *type.dims) {
    out << comma;
    if (dim.known()) {
      out << dim.value();
    } else {
      out << (dim.symbol().empty() ? "?" : dim.symbol());
    }
    comma = ",";
  }
  out << ']';
  return out.str();
}

std::string to_string(const Shape& shape) {
  std::ostringstream out;
  out << '[';
  for (size_t i = 0; i < shape.size(); ++i) out << (i ? "," : "") << shape[i];
  out << ']';
  return out.str();
}

int64_t num_elements(const Shape& shape) {
  int64_t count = 1;
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0) fail("shape ", to_string(shape), " has a negative size");
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(count, size, &count)) {
      fail("shape ", to_string(shape), " has more elements than a 64-bit number counts");
    }
  }
  return empty ? 0 : count;
}

TensorType from_proto(const onnx::TypeProto& proto) {
  TensorType type;
  if (!proto.has_tensor_type()) return type;
  type.dtype = static_cast<DType>(proto.tensor_type().elem_type());
  if (!proto.tensor_type().has_shape()) return type;
  type.dims.emplace();
  for (const auto& dim : proto.tensor_type().shape().dim()) {
    if (dim.has_dim_value()) {
      type.dims->emplace_back(static_cast<int64_t>(dim.dim_value()));
    } else {
      type.dims->emplace_back(dim.dim_param());
    }
  }
  return type;
}

void to_proto(const TensorType& type, onnx::TypeProto* proto) {
  auto* tensor = proto->mutable_tensor_type();
  tensor->set_elem_type(static_cast<int>(type.dtype));
  if (!type.dims) {
    tensor->clear_shape();
    return;
  }
  auto* shape = tensor->mutable_shape();
  shape->clear_dim();
  for (const Dim& dim : *type.dims) {
    auto* d = shape->add_dim();
    if (dim.known()) {
      d->set_dim_value(dim.value());
    } else if (!dim.symbol().empty()) {
      d->set_dim_param(dim.symbol());
    }
  }
}

Shape broadcast(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t da = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t db = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (da != db && da != 1 && db != 1) fail("shapes ", to_string(a), " and ", to_string(b), " do not broadcast");
    out[out.size() - 1 - i] = da == 1 ? db : da;
  }
  return out;
}

Shape inverse_permutation(const Shape& permutation) {
  Shape back(permutation.size(), -1);
  for (size_t i = 0; i < permutation.size(); ++i) {
    const auto to = static_cast<size_t>(permutation[i]);
    if (to < back.size()) back[to] = static_cast<int64_t>(i);
  }
  return back;
}

int64_t normalize_axis(int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank) fail("axis ", axis, " is outside a tensor of rank ", rank);
  return axis < 0 ? axis + rank : axis;
}

}  // namespace onnx_train
