// The contents of initializers. Small ones are in the message; large ones are a Tensor beside it, a view of the mapped
// file that the model was loaded from or memory that a pass made. The tensor travels with the shared message, so graphs
// that share an initializer share its contents, and nothing copies or reads them before somebody computes with them.
// Any thread may read.
#pragma once

#include <memory>
#include <string>

#include "onnx_passes/ir/protobuf.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

class Value;

// Tensors of fewer bytes stay in their messages, where shape inference and ONNX's checker read them.
inline constexpr size_t kMinBytesBeside = 1024;

// True for types whose contents may be beside the message: numbers and booleans, as Tensor holds them.
bool may_be_beside(DType dtype);

// A message of that name with the tensor's type and shape. Contents that are large are shared, not copied: they must
// not be changed afterwards.
std::shared_ptr<const onnx::TensorProto> make_initializer(const std::string& name, const Tensor& contents);
// The same for a message that is there and has no data of its own.
std::shared_ptr<const onnx::TensorProto> make_initializer(onnx::TensorProto message, const Tensor& contents);

// The contents that are beside the message; null when they are in it.
const Tensor* contents_beside(const std::shared_ptr<const onnx::TensorProto>& initializer);

// An initializer's contents, in place if they are beside its message: to be copied byte by byte, for a file aligns them
// as it likes. Throws Error where from_proto does.
Tensor stored_contents(const Value& value);
// The same, aligned to its elements: to compute with.
Tensor contents_of(const Value& value);

// The message with its contents, copied into it.
onnx::TensorProto whole_message(const Value& value);

}  // namespace onnx_train
