// The contents of initializers. Small ones are in the message; large ones are a Tensor stored beside it: a view of the
// mapped model file, or memory that a pass allocated. The tensor belongs to the shared message, so graphs that share an
// initializer share its contents, and nothing copies or reads them before they are needed. Any thread may read.
#pragma once

#include <memory>
#include <string>

#include "onnx_passes/ir/protobuf.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

class Value;

// Smaller tensors stay in their messages, where shape inference and ONNX's checker read them.
inline constexpr size_t kMinBytesBeside = 1024;

// Types whose contents may be stored beside the message: numbers and booleans, as in Tensor.
bool may_be_beside(DType dtype);

// A message with the given name and the tensor's type, shape and contents. Large contents are shared, not copied: they
// must not change afterwards.
std::shared_ptr<const onnx::TensorProto> make_initializer(const std::string& name, const Tensor& contents);
// The same of an existing message, which keeps all else: its name, its metadata.
std::shared_ptr<const onnx::TensorProto> make_initializer(onnx::TensorProto message, const Tensor& contents);

// The value's message with other contents: its name and metadata stay. The contents have the value's type and shape.
std::shared_ptr<const onnx::TensorProto> changed_initializer(const Value& value, const Tensor& contents);

// The contents stored beside the message; null if they are in the message. Of a widened tensor, callers read a copy:
// this one would keep its float32 numbers as long as the message.
const Tensor* contents_beside(const std::shared_ptr<const onnx::TensorProto>& initializer);

// The shape of an initializer's contents.
Shape constant_shape(const Value& value);

// The contents of an initializer, in place if stored beside the message. For byte-wise copies only, because files need
// not align them. Throws Error like from_proto.
Tensor stored_contents(const Value& value);
// The same, aligned to the element size, for computation.
Tensor contents_of(const Value& value);

// The message with its contents copied into it.
onnx::TensorProto whole_message(const Value& value);

}  // namespace onnx_train
