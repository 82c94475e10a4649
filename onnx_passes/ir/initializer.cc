#include "onnx_passes/ir/initializer.h"

#include <cstdint>

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

// A deleter that frees a message together with its contents; its type identifies such shared pointers.
struct DeleteWithContents {
  Tensor contents;
  void operator()(const onnx::TensorProto* message) const { delete message; }
};

void clear_all_data(onnx::TensorProto* message) {
  message->clear_float_data();
  message->clear_double_data();
  message->clear_int32_data();
  message->clear_int64_data();
  message->clear_uint64_data();
  message->clear_string_data();
  message->clear_raw_data();
  message->clear_external_data();
  message->clear_data_location();
}

}  // namespace

Shape constant_shape(const Value& value) {
  return {value.initializer()->dims().begin(), value.initializer()->dims().end()};
}

bool may_be_beside(DType dtype) { return is_float(dtype) || is_integer(dtype) || dtype == DType::kBool; }

std::shared_ptr<const onnx::TensorProto> make_initializer(const std::string& name, const Tensor& contents) {
  onnx::TensorProto message;
  message.set_name(name);
  return make_initializer(std::move(message), contents);
}

std::shared_ptr<const onnx::TensorProto> make_initializer(onnx::TensorProto message, const Tensor& contents) {
  clear_all_data(&message);
  message.clear_dims();
  for (const int64_t size : contents.shape()) message.add_dims(size);
  message.set_data_type(static_cast<int>(contents.dtype()));
  if (contents.bytes() < kMinBytesBeside || !may_be_beside(contents.dtype())) {
    message.set_raw_data(contents.data(), contents.bytes());
    return std::make_shared<const onnx::TensorProto>(std::move(message));
  }
  message.set_data_location(onnx::TensorProto::EXTERNAL);  // marks that the data are elsewhere, not zeros
  return {new onnx::TensorProto(std::move(message)), DeleteWithContents{contents}};
}

std::shared_ptr<const onnx::TensorProto> changed_initializer(const Value& value, const Tensor& contents) {
  onnx::TensorProto message;
  message.set_name(value.name());
  *message.mutable_metadata_props() = value.initializer()->metadata_props();
  return make_initializer(std::move(message), contents);
}

const Tensor* contents_beside(const std::shared_ptr<const onnx::TensorProto>& initializer) {
  const auto* deleter = std::get_deleter<DeleteWithContents>(initializer);
  return deleter ? &deleter->contents : nullptr;
}

Tensor stored_contents(const Value& value) {
  const Tensor* beside = contents_beside(value.shared_initializer());
  return beside ? *beside : from_proto(*value.initializer());
}

Tensor contents_of(const Value& value) {
  const Tensor stored = stored_contents(value);
  if (stored.is_stored_in_fewer_bits()) return stored;  // its numbers will be aligned
  const bool aligned = reinterpret_cast<uintptr_t>(stored.data()) % size_of(stored.dtype()) == 0;
  return aligned ? stored : stored.clone();
}

onnx::TensorProto whole_message(const Value& value) {
  onnx::TensorProto message = *value.initializer();
  if (contents_beside(value.shared_initializer())) {
    const Tensor contents = stored_contents(value);
    message.clear_data_location();
    message.set_raw_data(contents.data(), contents.bytes());
  }
  return message;
}

}  // namespace onnx_train
