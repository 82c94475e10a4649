#include "onnx_passes/ir/tensor.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/float8.h"
#include "onnx_passes/ir/half.h"
#include "onnx_passes/ir/load_element.h"
#include "onnx_passes/ir/onnx.h"
#include "platform/mapping.h"

namespace onnx_train {

// Raw data of ONNX, of checkpoints and of arrays in files are used as they are.
static_assert(
    std::endian::native == std::endian::little && sizeof(void*) == 8,
    "onnx-train is for little-endian processors of 64 bits: it computes on the bytes of ONNX's files in place");

namespace {

std::shared_ptr<void> allocate(size_t bytes) {
  constexpr size_t kLarge = size_t{1} << 20;
  if (bytes > SIZE_MAX - kAlignment) fail("a tensor of ", bytes, " bytes does not fit into memory");
  const size_t padded = std::max<size_t>(align_up(bytes), kAlignment);
  if (padded >= kLarge) {  // zero pages that nothing writes, such as an optimizer's initial moments, take no memory
    void* const data = platform::map_zeros(padded);
    if (!data) fail_as(ErrorCode::kOutOfMemory, "out of memory: a tensor of ", bytes, " bytes could not be allocated");
    if (padded >= 4 * kLarge) platform::prefer_huge_pages(data, padded);
    return {data, [padded](void* mapped) { platform::unmap(mapped, padded); }};
  }
  void* data = platform::allocate_aligned(kAlignment, padded);
  if (!data) fail_as(ErrorCode::kOutOfMemory, "out of memory: a tensor of ", bytes, " bytes could not be allocated");
  std::memset(data, 0, padded);
  return {data, platform::free_aligned};
}

// Calls f with a value of the C++ type of `dtype`; 16-bit floats are passed as their own types.
template <typename F>
auto visit(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat: return f(float{});
    case DType::kDouble: return f(double{});
    case DType::kFloat16: return f(Float16{});
    case DType::kBFloat16: return f(BFloat16{});
    case DType::kInt8: return f(int8_t{});
    case DType::kUint8: return f(uint8_t{});
    case DType::kInt16: return f(int16_t{});
    case DType::kUint16: return f(uint16_t{});
    case DType::kInt32: return f(int32_t{});
    case DType::kUint32: return f(uint32_t{});
    case DType::kInt64: return f(int64_t{});
    case DType::kUint64: return f(uint64_t{});
    case DType::kBool: return f(bool{});
    default: fail("tensors of type ", name(dtype), " are not supported here");
  }
}

template <typename Out, typename In>
Out convert(In value) {
  if constexpr (std::is_same_v<Out, bool>) {
    return static_cast<double>(value) != 0.0;
  } else {
    return static_cast<Out>(value);
  }
}

}  // namespace

Tensor::Tensor(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)), size_(num_elements(shape_)) {
  if (is_8_bit_float(dtype)) fail("tensors of type ", name(dtype), " are not supported here");
  size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(size_), size_of(dtype), &bytes)) {
    fail("a tensor of shape ", to_string(shape_), " does not fit into memory");
  }
  const std::shared_ptr<void> buffer = allocate(bytes);
  writable_ = buffer.get();
  data_ = buffer;
}

Tensor::Tensor(DType dtype, Shape shape, const void* data, std::shared_ptr<const void> owner)
    : dtype_(dtype), shape_(std::move(shape)), size_(num_elements(shape_)), data_(std::move(owner), data) {
  if (!data && bytes() > 0) fail("a tensor ", name(dtype_), to_string(shape_), " has no memory");
}

Tensor Tensor::on_device(DType dtype, Shape shape, const void* address) {
  Tensor tensor(dtype, std::move(shape), address, nullptr);
  tensor.is_on_device_ = true;
  return tensor;
}

Tensor Tensor::full(DType dtype, Shape shape, double value) {
  Tensor tensor(dtype, std::move(shape));
  visit(dtype, [&](auto tag) {
    using T = decltype(tag);
    std::fill_n(tensor.data<T>(), tensor.size(), convert<T>(value));
  });
  return tensor;
}

struct Tensor::Widening::State {
  explicit State(Tensor of) : stored(std::move(of)) {}

  const Tensor stored;
  std::once_flag once;
  std::atomic<bool> is_read{false};
  Tensor numbers;
};

Tensor::Widening::Widening(const Widening& other) {
  if (!other.state) return;
  state = other.state->is_read ? other.state : std::make_shared<State>(other.state->stored);
}

Tensor::Widening& Tensor::Widening::operator=(const Widening& other) {
  if (this != &other) *this = Widening(other);
  return *this;
}

Tensor Tensor::widened(const Tensor& narrow) {
  if (!is_16_bit_float(narrow.dtype())) fail("a tensor of type ", name(narrow.dtype()), " is not widened here");
  Tensor wide;
  wide.dtype_ = DType::kFloat;
  wide.shape_ = narrow.shape();
  wide.size_ = narrow.size();
  wide.widening_.state = std::make_shared<Widening::State>(narrow);
  return wide;
}

Tensor Tensor::unpacked(DType dtype, Shape shape, const Tensor& bytes) {
  Tensor wide;
  wide.dtype_ = dtype;
  wide.shape_ = std::move(shape);
  wide.size_ = num_elements(wide.shape_);
  const bool is_integer = dtype == DType::kInt8 || dtype == DType::kUint8;
  if (!is_integer || bytes.dtype() != DType::kUint8 || bytes.size() != (wide.size_ + 1) / 2)
    fail(bytes.size(), " bytes do not hold the 4-bit integers of ", name(dtype), to_string(wide.shape_));
  wide.widening_.state = std::make_shared<Widening::State>(bytes);
  return wide;
}

const Tensor* Tensor::narrow() const {
  return is_float(dtype_) && widening_.state ? &widening_.state->stored : nullptr;
}
const Tensor* Tensor::packed() const {
  return !is_float(dtype_) && widening_.state ? &widening_.state->stored : nullptr;
}
const Tensor& Tensor::stored() const { return widening_.state ? widening_.state->stored : *this; }

namespace {

// An integer of 4 bits, of which `dtype` says whether it is signed, as 8 bits.
uint8_t widened_four_bits(uint8_t bits, DType dtype) {
  return static_cast<uint8_t>(dtype == DType::kInt8 ? (bits ^ 8) - 8 : bits);
}

}  // namespace

const void* Tensor::widened_data() const {
  Widening::State& state = *widening_.state;
  std::call_once(state.once, [&] {
    state.numbers = clone();
    state.is_read = true;
  });
  return std::as_const(state.numbers).data();
}

Tensor Tensor::clone() const {
  if (empty()) return {};
  if (narrow()) return narrow()->cast(dtype_);
  Tensor copy(dtype_, shape_);
  if (packed()) {
    const auto* from = packed()->data<uint8_t>();
    auto* to = copy.data<uint8_t>();
    for (int64_t i = 0; i + 1 < size_; i += 2) {
      to[i] = widened_four_bits(from[i / 2] & 15, dtype_);
      to[i + 1] = widened_four_bits(from[i / 2] >> 4, dtype_);
    }
    if (size_ % 2 != 0) to[size_ - 1] = widened_four_bits(from[size_ / 2] & 15, dtype_);
    return copy;
  }
  std::memcpy(copy.data(), data(), bytes());
  return copy;
}

Tensor Tensor::part(int64_t first, int64_t count) const {
  const Tensor& from = stored();
  if (first < 0 || count < 0 || first > size_ - count || (packed() && first % 2 != 0))
    fail("elements ", first, " to ", first + count, " are no part of ", to_string(shape_));
  const auto view = [&](int64_t at, int64_t elements) {
    return Tensor(from.dtype(), {elements}, from.data<char>() + static_cast<size_t>(at) * size_of(from.dtype()),
                  nullptr);
  };
  if (packed()) return unpacked(dtype_, {count}, view(first / 2, (count + 1) / 2));
  return narrow() ? widened(view(first, count)) : view(first, count);
}

Tensor Tensor::reshaped(Shape shape) const {
  if (num_elements(shape) != size_) fail("shape ", to_string(shape_), " cannot become ", to_string(shape));
  if (narrow()) return widened(narrow()->reshaped(std::move(shape)));
  if (packed()) return unpacked(dtype_, std::move(shape), *packed());
  Tensor view = *this;
  view.shape_ = std::move(shape);
  return view;
}

namespace {

// What all 65,536 numbers of a 16-bit type are as floats.
template <typename T>
const std::vector<float>& floats_of() {
  static const std::vector<float> all = [] {
    std::vector<float> numbers(1 << 16);
    for (size_t bits = 0; bits < numbers.size(); ++bits) {
      const auto stored = static_cast<uint16_t>(bits);
      numbers[bits] = convert<float>(load_element<T>(&stored, 0));
    }
    return numbers;
  }();
  return all;
}

// Weights come by the hundred million.
Tensor widened_by_table(const Tensor& narrow) {
  Tensor out(DType::kFloat, narrow.shape());
  const std::vector<float>& floats = narrow.dtype() == DType::kFloat16 ? floats_of<Float16>() : floats_of<BFloat16>();
  auto* result = out.data<float>();
  for (int64_t i = 0; i < narrow.size(); ++i) result[i] = floats[load_element<uint16_t>(narrow.data<char>(), i)];
  return out;
}

}  // namespace

Tensor Tensor::cast(DType to) const {
  if (narrow()) return to == narrow()->dtype() ? *narrow() : narrow()->cast(to);
  if (packed()) return to == dtype_ ? *this : clone().cast(to);
  if (is_16_bit_float(dtype_) && to == DType::kFloat && size_ >= 1 << 16) return widened_by_table(*this);
  Tensor out(to, shape_);
  visit(dtype_, [&](auto in_tag) {
    using In = decltype(in_tag);
    visit(to, [&](auto out_tag) {
      using Out = decltype(out_tag);
      const void* in = data_.get();
      Out* result = out.data<Out>();
      for (int64_t i = 0; i < size_; ++i) result[i] = convert<Out>(load_element<In>(in, i));
    });
  });
  return out;
}

double Tensor::at(int64_t index) const {
  if (narrow()) return narrow()->at(index);
  if (packed()) {
    const uint8_t byte = packed()->data<uint8_t>()[index / 2];
    const uint8_t bits = widened_four_bits(index % 2 == 0 ? byte & 15 : byte >> 4, dtype_);
    return dtype_ == DType::kInt8 ? static_cast<int8_t>(bits) : bits;
  }
  return visit(dtype_, [&](auto tag) { return static_cast<double>(load_element<decltype(tag)>(data_.get(), index)); });
}

void Tensor::set(int64_t index, double value) {
  visit(dtype_, [&](auto tag) { data<decltype(tag)>()[index] = convert<decltype(tag)>(value); });
}

bool is_zero(const void* data, size_t bytes) {
  const auto* first = static_cast<const char*>(data);
  return bytes > 0 && *first == 0 && std::memcmp(first, first + 1, bytes - 1) == 0;
}

bool is_uniform(const Tensor& tensor) {
  if (tensor.size() < 2) return true;
  if (tensor.narrow()) return is_uniform(*tensor.narrow());
  const size_t element = size_of(tensor.dtype());
  const auto* data = tensor.data<char>();
  return std::memcmp(data, data + element, tensor.bytes() - element) == 0;  // stops at the first difference
}

bool Tensor::holds_only(double value) const {
  for (int64_t i = 0; i < size(); ++i) {
    if (at(i) != value) return false;
  }
  return !empty();
}

std::vector<int64_t> Tensor::to_ints() const {
  std::vector<int64_t> values(static_cast<size_t>(size_));
  for (int64_t i = 0; i < size_; ++i) {
    values[static_cast<size_t>(i)] =
        dtype_ == DType::kInt64 ? load_element<int64_t>(data_.get(), i) : static_cast<int64_t>(at(i));
  }
  return values;
}

namespace {

// Copies a repeated protobuf field into the tensor; the field's element type may be wider (int32_data holds bytes).
template <typename T, typename Field>
void copy_field(const Field& field, Tensor* tensor, const std::string& name) {
  if (field.size() != tensor->size()) {
    fail("tensor '", name, "' of shape ", to_string(tensor->shape()), " holds ", field.size(),
         " elements; the file is damaged");
  }
  T* out = tensor->data<T>();
  for (int i = 0; i < field.size(); ++i) out[i] = static_cast<T>(field.Get(i));
}

void copy_typed_data(const onnx::TensorProto& proto, Tensor* tensor) {
  switch (tensor->dtype()) {
    case DType::kFloat: return copy_field<float>(proto.float_data(), tensor, proto.name());
    case DType::kDouble: return copy_field<double>(proto.double_data(), tensor, proto.name());
    case DType::kInt64: return copy_field<int64_t>(proto.int64_data(), tensor, proto.name());
    case DType::kUint64: return copy_field<uint64_t>(proto.uint64_data(), tensor, proto.name());
    case DType::kUint32: return copy_field<uint32_t>(proto.uint64_data(), tensor, proto.name());
    case DType::kInt32: return copy_field<int32_t>(proto.int32_data(), tensor, proto.name());
    case DType::kInt16: return copy_field<int16_t>(proto.int32_data(), tensor, proto.name());
    case DType::kInt8: return copy_field<int8_t>(proto.int32_data(), tensor, proto.name());
    case DType::kUint8: return copy_field<uint8_t>(proto.int32_data(), tensor, proto.name());
    case DType::kBool: return copy_field<bool>(proto.int32_data(), tensor, proto.name());
    default:
      return copy_field<uint16_t>(proto.int32_data(), tensor, proto.name());  // uint16, and the bits of 16-bit floats
  }
}

}  // namespace

Tensor from_proto(const onnx::TensorProto& proto) {
  const auto dtype = static_cast<DType>(proto.data_type());
  const Shape shape(proto.dims().begin(), proto.dims().end());
  if (proto.data_location() == onnx::TensorProto::EXTERNAL) {
    fail("tensor '", proto.name(), "' has external data that was not loaded; load the model from its file");
  }
  // The message contains the data, so its size bounds the allocation.
  const int64_t count = num_elements(shape);
  if (proto.has_raw_data()) {
    if (static_cast<int64_t>(proto.raw_data().size() / size_of(dtype)) != count ||
        proto.raw_data().size() % size_of(dtype) != 0) {
      fail("tensor '", proto.name(), "' of type ", name(dtype), to_string(shape), " holds ", proto.raw_data().size(),
           " bytes; the file is damaged");
    }
  } else if (count > static_cast<int64_t>(proto.ByteSizeLong())) {
    fail("tensor '", proto.name(), "' of shape ", to_string(shape), " holds fewer elements; the file is damaged");
  }
  Tensor tensor(dtype, shape);
  if (proto.has_raw_data()) {
    std::memcpy(tensor.data(), proto.raw_data().data(), proto.raw_data().size());
  } else {
    copy_typed_data(proto, &tensor);
  }
  return tensor;
}

void to_proto(const Tensor& tensor, const std::string& name, onnx::TensorProto* proto) {
  proto->Clear();
  proto->set_name(name);
  proto->set_data_type(static_cast<int>(tensor.dtype()));
  for (int64_t size : tensor.shape()) proto->add_dims(size);
  proto->set_raw_data(tensor.data(), tensor.bytes());
}

}  // namespace onnx_train
