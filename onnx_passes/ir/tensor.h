// A dense tensor in host memory, used for constants, initializers, states, data files and test expectations. Copies
// share the buffer; `clone` makes a separate one. Buffers are aligned to 64 bytes and zero-initialized. Views of
// foreign memory are read-only: the first mutable access copies. Any thread may read; one thread at a time may write.
// Functions throw Error for types and sizes that do not fit.
//
// A tensor may also name memory of a device (`on_device`). It is then only a type, a shape and an address, for
// functions that say that they take such tensors; the host must not access its elements.
//
// A tensor may also be stored in fewer bits than its type has, as frozen weights of a file are (`widened`, `unpacked`):
// its own numbers take memory only while somebody reads them through `data`.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/ir/types.h"

namespace onnx_train {

// The alignment in bytes of the buffers of tensors and of all memory that CPU kernels use.
inline constexpr size_t kAlignment = 64;

// Returns `bytes` rounded up to a multiple of `alignment`.
constexpr size_t align_up(size_t bytes, size_t alignment = kAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, Shape shape);  // zeros
  // A read-only view of memory that `owner` keeps alive (such as a mapped file).
  Tensor(DType dtype, Shape shape, const void* data, std::shared_ptr<const void> owner);

  // A tensor in memory of a device, which the caller keeps.
  static Tensor on_device(DType dtype, Shape shape, const void* address);

  // The numbers of `narrow`, 16-bit floats, as float32. `data` computes them at the first call. This tensor keeps them,
  // and so do copies that are made of it afterwards; earlier copies compute their own. `at`, `cast`, `clone` and
  // is_uniform do not need them.
  static Tensor widened(const Tensor& narrow);
  // The same for int8 or uint8 of bytes that hold two integers of 4 bits each, the first in the low half.
  static Tensor unpacked(DType dtype, Shape shape, const Tensor& bytes);

  const Tensor* narrow() const;  // what `widened` was given; null for other tensors
  const Tensor* packed() const;  // the bytes that `unpacked` was given; null for other tensors
  const Tensor& stored() const;  // either of them; this tensor for others
  bool is_stored_in_fewer_bits() const { return widening_.state != nullptr; }

  template <typename T>
  static Tensor of(Shape shape, const std::vector<T>& values);
  template <typename T>
  static Tensor scalar(T value) {
    return of<T>({}, std::vector<T>{value});
  }
  // A 1-D int64 tensor, the form of shapes and axes.
  static Tensor ints(const std::vector<int64_t>& values) {
    return of<int64_t>({static_cast<int64_t>(values.size())}, values);
  }
  // A tensor of the given shape and type (any float or integer type) filled with `value`.
  static Tensor full(DType dtype, Shape shape, double value);

  bool empty() const { return dtype_ == DType::kUndefined; }  // default-constructed
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  bool is_on_device() const { return is_on_device_; }
  int64_t size() const { return size_; }  // elements
  size_t bytes() const { return static_cast<size_t>(size_) * size_of(dtype_); }
  void* data() {
    if (!writable_ && (data_ || widening_.state)) *this = clone();
    return writable_;
  }
  const void* data() const { return widening_.state ? widened_data() : data_.get(); }
  template <typename T>
  T* data() {
    return static_cast<T*>(data());
  }
  template <typename T>
  const T* data() const {
    return static_cast<const T*>(data());
  }

  Tensor clone() const;
  Tensor reshaped(Shape shape) const;  // same buffer; same number of elements
  // Elements in row-major order, as one axis: a view, valid while this tensor is. `first` is even where they are
  // packed.
  Tensor part(int64_t first, int64_t count) const;
  Tensor cast(DType dtype) const;  // rounds to nearest, like ONNX's Cast
  double at(int64_t index) const;  // element as a double
  void set(int64_t index, double value);
  std::vector<int64_t> to_ints() const;  // of an int32 or int64 tensor
  bool holds_only(double value) const;   // no element is another number; false for an empty() tensor

 private:
  // The numbers of a tensor that is stored in fewer bits, once they are read. A copy shares them if they are there.
  struct Widening {
    struct State;
    std::shared_ptr<State> state;
    Widening() = default;
    Widening(const Widening& other);
    Widening& operator=(const Widening& other);
    Widening(Widening&&) = default;
    Widening& operator=(Widening&&) = default;
  };

  const void* widened_data() const;

  DType dtype_ = DType::kUndefined;
  Shape shape_;
  int64_t size_ = 0;
  std::shared_ptr<const void> data_;
  void* writable_ = nullptr;  // the same memory; null in a view
  bool is_on_device_ = false;
  Widening widening_;
};

template <typename T>
Tensor Tensor::of(Shape shape, const std::vector<T>& values) {
  Tensor tensor(dtype_of<T>(), std::move(shape));
  T* out = tensor.data<T>();
  for (int64_t i = 0; i < tensor.size(); ++i) out[i] = values[static_cast<size_t>(i)];
  return tensor;
}

using TensorMap = std::map<std::string, Tensor>;  // by name

// Whether all bytes are zero; false if there are none.
bool is_zero(const void* data, size_t bytes);
// Whether all elements have the same bits; true of none.
bool is_uniform(const Tensor& tensor);

// Converts a TensorProto whose data are in the message. Throws Error if their size does not match the shape.
Tensor from_proto(const onnx::TensorProto& proto);
// Writes the contents as raw data.
void to_proto(const Tensor& tensor, const std::string& name, onnx::TensorProto* proto);

}  // namespace onnx_train
