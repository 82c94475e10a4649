// Element types, dimensions and shapes of tensors, as ONNX defines them. Plain values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

// The values are those of onnx::TensorProto::DataType.
enum class DType : int {
  kUndefined = 0,
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kDouble = 11,
  kUint32 = 12,
  kUint64 = 13,
  kBFloat16 = 16,
  // Types that nodes round to; no tensor here has them.
  kFloat8E4M3FN = 17,
  kFloat8E5M2 = 19,
};

// Bytes per element. Throws Error for types without a whole number of bytes per element (strings, 4-bit types).
size_t size_of(DType dtype);
// ONNX's name of the type in text form: "float", "int64", "bfloat16", ...
std::string name(DType dtype);
// True for types that have a gradient.
bool is_float(DType dtype);
inline bool is_16_bit_float(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }
bool is_integer(DType dtype);

// The DType of a C++ type: dtype_of<float>() == DType::kFloat.
template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kFloat;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::kDouble;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::kInt8;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::kUint8;
}
template <>
constexpr DType dtype_of<int16_t>() {
  return DType::kInt16;
}
template <>
constexpr DType dtype_of<uint16_t>() {
  return DType::kUint16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::kInt32;
}
template <>
constexpr DType dtype_of<uint32_t>() {
  return DType::kUint32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::kInt64;
}
template <>
constexpr DType dtype_of<uint64_t>() {
  return DType::kUint64;
}
template <>
constexpr DType dtype_of<bool>() {
  return DType::kBool;
}

// One dimension: a known size, a symbol such as "batch", or unknown. Also one element of an integer tensor whose
// contents shape inference propagates.
class Dim {
 public:
  Dim() : symbol_(std::shared_ptr<void>(), &kNone) {}
  Dim(int64_t value) : value_(value) {}  // NOLINT: implicit conversion intended
  Dim(std::string symbol)
      : symbol_(std::make_shared<const std::string>(std::move(symbol))) {}  // NOLINT: implicit conversion intended
  Dim(const char* symbol) : Dim(std::string(symbol)) {}                     // NOLINT
  bool known() const { return !symbol_; }
  int64_t value() const { return value_; }  // 0 unless known
  const std::string& symbol() const { return symbol_ ? *symbol_ : kNone; }
  bool operator==(const Dim& other) const {
    return known() == other.known() && value_ == other.value_ && symbol() == other.symbol();
  }
  // True if both certainly have the same size.
  bool same(const Dim& other) const { return (known() || !symbol_->empty()) && *this == other; }

 private:
  static const std::string kNone;

  int64_t value_ = 0;
  // Null if the size is known, which is the common case: a string per dimension would double the memory of a graph.
  std::shared_ptr<const std::string> symbol_;
};

using Dims = std::vector<Dim>;
using Shape = std::vector<int64_t>;  // concrete

// The type of a tensor. `dims` is empty if even the rank is unknown.
struct TensorType {
  DType dtype = DType::kUndefined;
  std::optional<Dims> dims;

  bool has_rank() const { return dims.has_value(); }
  int64_t rank() const { return static_cast<int64_t>(dims->size()); }
  bool is_static() const;
  Shape shape() const;  // requires is_static()
  bool operator==(const TensorType&) const = default;
};

// True if both certainly have the same element type and sizes.
bool same(const TensorType& a, const TensorType& b);

// "float[batch,3,?]"
std::string to_string(const TensorType& type);
std::string to_string(const Shape& shape);

int64_t num_elements(const Shape& shape);  // throws Error for overflow or a negative size

TensorType from_proto(const onnx::TypeProto& proto);  // kUndefined for anything but a dense tensor
void to_proto(const TensorType& type, onnx::TypeProto* proto);

// The shape that a and b broadcast to by ONNX's (NumPy's) rules. Throws Error if they do not.
Shape broadcast(const Shape& a, const Shape& b);

// The permutation that undoes this one. If the argument is no permutation, neither is the result.
Shape inverse_permutation(const Shape& permutation);

// Converts an axis that may be counted from the end to one counted from the start. Throws Error outside [-rank, rank).
int64_t normalize_axis(int64_t axis, int64_t rank);

}  // namespace onnx_train
