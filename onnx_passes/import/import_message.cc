#include "onnx_passes/import/import_message.h"

#include <onnx/inliner/inliner.h>

#include <cstring>
#include <map>
#include <tuple>

#include "onnx_passes/functions/declaration.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

// ---- Functions

// Functions by name, domain and overload.
using Functions = std::map<std::tuple<std::string, std::string, std::string>, const onnx::FunctionProto*>;

void fill_defaults(Nodes* nodes, const Functions& functions) {
  for (auto& node : *nodes) {
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) fill_defaults(attribute.mutable_g()->mutable_node(), functions);
      for (auto& graph : *attribute.mutable_graphs()) fill_defaults(graph.mutable_node(), functions);
    }
    const auto called = functions.find({node.op_type(), node.domain(), node.overload()});
    if (called == functions.end()) continue;
    for (const auto& standard : called->second->attribute_proto()) {
      bool given = false;
      for (const auto& a : node.attribute()) given = given || a.name() == standard.name();
      if (!given) *node.add_attribute() = standard;
    }
  }
}

// ---- Sparse tensors

// The positions of the elements in the dense tensor.
std::vector<int64_t> positions(const onnx::SparseTensorProto& sparse, const Shape& shape, int64_t count) {
  const std::string& name = sparse.values().name();
  const Tensor indices = from_proto(sparse.indices());
  const auto rank = static_cast<int64_t>(shape.size());
  const bool flat = indices.shape() == Shape{count}, by_axis = indices.shape() == Shape{count, rank};
  if (indices.dtype() != DType::kInt64 || (!flat && !by_axis))
    fail("[Import] sparse tensor '", name, "': its ", count, " values have indices of the shape ",
         to_string(indices.shape()), "; store it dense");
  const auto* from = indices.data<int64_t>();
  const int64_t size = num_elements(shape);
  std::vector<int64_t> result;
  for (int64_t i = 0; i < count; ++i) {
    int64_t position = flat ? from[i] : 0;
    bool inside = position >= 0 && position < size;
    for (int64_t axis = 0; !flat && axis < rank; ++axis) {
      const int64_t index = from[i * rank + axis], limit = shape[static_cast<size_t>(axis)];
      inside = inside && index >= 0 && index < limit;
      position = inside ? position * limit + index : 0;
    }
    if (!inside)
      fail("[Import] sparse tensor '", name, "': the index of its value ", i, " is outside ", to_string(shape));
    result.push_back(position);
  }
  return result;
}

onnx::TensorProto dense(const onnx::SparseTensorProto& sparse) {
  const std::string& name = sparse.values().name();
  const Tensor values = from_proto(sparse.values());
  const Shape shape(sparse.dims().begin(), sparse.dims().end());
  const size_t element = size_of(values.dtype());
  if (values.shape().size() != 1 || static_cast<size_t>(num_elements(shape)) > kMaxMessageBytes / element)
    fail("[Import] sparse tensor '", name, "' of the shape ", to_string(shape), " with values of the shape ",
         to_string(values.shape()), " cannot be made dense; store it dense");
  Tensor result(values.dtype(), shape);
  const std::vector<int64_t> to = positions(sparse, shape, values.size());
  for (size_t i = 0; i < to.size(); ++i) {
    std::memcpy(static_cast<char*>(result.data()) + static_cast<size_t>(to[i]) * element,
                static_cast<const char*>(values.data()) + i * element, element);
  }
  onnx::TensorProto proto;
  to_proto(result, name, &proto);
  return proto;
}

void densify(onnx::GraphProto* graph) {
  for (const auto& sparse : graph->sparse_initializer()) *graph->add_initializer() = dense(sparse);
  graph->clear_sparse_initializer();
  for (auto& node : *graph->mutable_node()) {
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) densify(attribute.mutable_g());
      for (auto& subgraph : *attribute.mutable_graphs()) densify(&subgraph);
      if (!attribute.has_sparse_tensor() || attribute.name() != "sparse_value") continue;
      onnx::AttributeProto value;
      value.set_name("value");
      value.set_type(onnx::AttributeProto::TENSOR);
      *value.mutable_t() = dense(attribute.sparse_tensor());
      attribute = value;
    }
  }
}

}  // namespace

void inline_functions(onnx::ModelProto* proto) {
  // Some are more than their bodies: their calls stay, and importing declares them again.
  for (int i = proto->functions_size() - 1; i >= 0; --i) {
    const auto& f = proto->functions(i);
    if (keeps_its_calls(f.domain(), f.name())) proto->mutable_functions()->DeleteSubrange(i, 1);
  }
  if (proto->functions_size() == 0) return;
  Functions functions;
  for (const auto& f : proto->functions()) functions.emplace(std::tuple(f.name(), f.domain(), f.overload()), &f);
  fill_defaults(proto->mutable_graph()->mutable_node(), functions);
  for (auto& f : *proto->mutable_functions()) fill_defaults(f.mutable_node(), functions);
  try {
    onnx::inliner::InlineLocalFunctions(*proto);
  } catch (const std::exception& error) {
    fail("[Import] the model's functions cannot be inlined: ", error.what());
  }
  if (proto->functions_size() > 0) {
    const auto& f = proto->functions(0);
    fail("[Import] function '", f.domain(), ".", f.name(),
         "' uses another opset than the model and cannot be inlined; export the model without local functions");
  }
}

void densify(onnx::ModelProto* model) { densify(model->mutable_graph()); }

}  // namespace onnx_train
