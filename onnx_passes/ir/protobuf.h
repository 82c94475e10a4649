// Forward declarations of ONNX's protobuf messages. The generated header takes four seconds to compile, so only
// the .cc files that read or write messages include it (as "onnx_passes/ir/onnx.h").
#pragma once

namespace onnx_train_onnx {
class AttributeProto;
class FunctionProto;
class GraphProto;
class ModelProto;
class NodeProto;
class TensorProto;
class TypeProto;
class ValueInfoProto;
}  // namespace onnx_train_onnx

namespace onnx_train {
namespace onnx = ::onnx_train_onnx;
}
