#include "onnx_passes/ir/message_tensors.h"

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/types.h"

namespace onnx_train {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

void visit_nodes(Nodes* nodes, bool in_function, const TensorVisitor& f);

void visit_graph(onnx::GraphProto* graph, bool in_function, const TensorVisitor& f) {
  for (auto& tensor : *graph->mutable_initializer()) f(&tensor, !in_function);
  for (auto& sparse : *graph->mutable_sparse_initializer()) {
    f(sparse.mutable_values(), false);
    f(sparse.mutable_indices(), false);
  }
  visit_nodes(graph->mutable_node(), in_function, f);
}

void visit_attribute(onnx::AttributeProto* attribute, bool in_function, const TensorVisitor& f) {
  if (attribute->has_t()) f(attribute->mutable_t(), false);
  for (auto& tensor : *attribute->mutable_tensors()) f(&tensor, false);
  if (attribute->has_g()) visit_graph(attribute->mutable_g(), in_function, f);
  for (auto& graph : *attribute->mutable_graphs()) visit_graph(&graph, in_function, f);
}

void visit_nodes(Nodes* nodes, bool in_function, const TensorVisitor& f) {
  for (auto& node : *nodes) {
    for (auto& attribute : *node.mutable_attribute()) visit_attribute(&attribute, in_function, f);
  }
}

int bits_of(int data_type) {
  switch (data_type) {
    case onnx::TensorProto::UINT2:
    case onnx::TensorProto::INT2: return 2;
    case onnx::TensorProto::UINT4:
    case onnx::TensorProto::INT4:
    case onnx::TensorProto::FLOAT4E2M1: return 4;
    case onnx::TensorProto::FLOAT6E2M3:
    case onnx::TensorProto::FLOAT6E3M2: return 6;
    case onnx::TensorProto::FLOAT8E4M3FN:
    case onnx::TensorProto::FLOAT8E4M3FNUZ:
    case onnx::TensorProto::FLOAT8E5M2:
    case onnx::TensorProto::FLOAT8E5M2FNUZ:
    case onnx::TensorProto::FLOAT8E8M0: return 8;
    case onnx::TensorProto::COMPLEX64: return 64;
    case onnx::TensorProto::COMPLEX128: return 128;
    case onnx::TensorProto::STRING: return 0;
    default: return 8 * static_cast<int>(size_of(static_cast<DType>(data_type)));
  }
}

}  // namespace

void for_each_tensor(onnx::ModelProto* model, const TensorVisitor& f) {
  if (model->has_graph()) visit_graph(model->mutable_graph(), false, f);
  for (auto& info : *model->mutable_training_info()) {
    if (info.has_initialization()) visit_graph(info.mutable_initialization(), false, f);
    if (info.has_algorithm()) visit_graph(info.mutable_algorithm(), false, f);
  }
  for (auto& function : *model->mutable_functions()) {
    visit_nodes(function.mutable_node(), true, f);
    for (auto& attribute : *function.mutable_attribute_proto()) visit_attribute(&attribute, true, f);
  }
}

size_t declared_bytes(const onnx::TensorProto& tensor) {
  if (!onnx::TensorProto::DataType_IsValid(tensor.data_type()) || tensor.data_type() == onnx::TensorProto::UNDEFINED) {
    fail("tensor '", tensor.name(), "': element type ", tensor.data_type(), " is none that ONNX defines");
  }
  uint64_t bits = static_cast<uint64_t>(bits_of(tensor.data_type()));
  bool empty = false;
  uint64_t product = 1;
  for (const int64_t d : tensor.dims()) {
    if (d < 0) fail("tensor '", tensor.name(), "': dimension ", d, " is negative");
    empty = empty || d == 0;
    if (d > 0 && __builtin_mul_overflow(product, static_cast<uint64_t>(d), &product)) product = UINT64_MAX;
  }
  if (empty) return 0;
  if (product > INT64_MAX || __builtin_mul_overflow(product, bits, &bits)) {
    fail("tensor '", tensor.name(), "': its dimensions multiply to more than any memory holds");
  }
  return (bits + 7) / 8;
}

}  // namespace onnx_train
