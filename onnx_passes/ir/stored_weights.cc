#include "onnx_passes/ir/stored_weights.h"

#include <algorithm>
#include <unordered_map>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"

namespace onnx_train {
namespace {

constexpr const char* kWidened = "onnx_train.widened";

// What the Cast makes of an initializer; kUndefined for types that no weight is stored in.
DType cast_to(const onnx::TensorProto& stored) {
  switch (stored.data_type()) {
    case onnx::TensorProto::FLOAT16:
    case onnx::TensorProto::BFLOAT16: return DType::kFloat;
    case onnx::TensorProto::INT4: return DType::kInt8;
    case onnx::TensorProto::UINT4: return DType::kUint8;
    default: return DType::kUndefined;
  }
}

// The weight's numbers.
Tensor wide_contents(const onnx::TensorProto& stored, const Contents& contents) {
  const auto index = reference_of(stored);
  if (!has_four_bits(stored)) return Tensor::widened(index ? referred(contents, *index) : from_proto(stored));
  const Shape shape(stored.dims().begin(), stored.dims().end());
  return Tensor::unpacked(cast_to(stored), shape, index ? referred(contents, *index) : packed_bytes(stored));
}

// The type of what is stored: of 4-bit integers `stored` has the bytes.
DType stored_type(const Value& value, const Tensor& stored) {
  if (is_float(stored.dtype())) return stored.dtype();
  return static_cast<DType>(value.dtype() == DType::kInt8 ? onnx::TensorProto::INT4 : onnx::TensorProto::UINT4);
}

}  // namespace

StoredWeights::StoredWeights(const onnx::GraphProto& graph) {
  std::unordered_map<std::string, const onnx::TensorProto*> stored;
  for (const auto& tensor : graph.initializer()) {
    if (find_property(tensor.metadata_props(), kWidened) && cast_to(tensor) != DType::kUndefined)
      stored.emplace(tensor.name(), &tensor);
  }
  if (stored.empty()) return;
  for (const auto& node : graph.node()) {
    if (node.op_type() != "Cast" || !node.domain().empty() || node.input_size() != 1 || node.output_size() != 1)
      continue;
    const auto found = stored.find(node.input(0));
    const bool is_it = found != stored.end() && node.attribute_size() == 1 && node.attribute(0).name() == "to" &&
                       node.attribute(0).i() == static_cast<int64_t>(cast_to(*found->second)) &&
                       *find_property(found->second->metadata_props(), kWidened) == node.output(0);
    if (!is_it) continue;
    tensors_.insert(found->second);
    casts_.insert(&node);
  }
}

Value* StoredWeights::read(const onnx::TensorProto& tensor, const Contents& contents, Graph* graph) {
  const std::string name = *find_property(tensor.metadata_props(), kWidened);
  onnx::TensorProto message;
  message.set_name(name);
  *message.mutable_metadata_props() = tensor.metadata_props();
  if (tensor.has_doc_string()) message.set_doc_string(tensor.doc_string());
  remove_property(kWidened, message.mutable_metadata_props());
  return graph->add_initializer(name, make_initializer(std::move(message), wide_contents(tensor, contents)));
}

FrozenWeights::FrozenWeights(const Model& model) : model_(model) {
  for (const EntryPoint& entry : model.entry_points) {
    for (const auto* bindings : {&entry.update_bindings, &entry.initialization_bindings}) {
      for (const Binding& binding : *bindings) updated_.insert(binding.state);
    }
  }
}

// What such a weight is stored in; null for other values.
const Tensor* FrozenWeights::stored(const Value& value) const {
  const Tensor* beside = contents_beside(value.shared_initializer());
  const bool is_frozen =
      beside && beside->is_stored_in_fewer_bits() && !value.graph().is_input(&value) && !updated_.contains(&value);
  return is_frozen ? &beside->stored() : nullptr;
}

// A name that nothing in the model has.
std::string FrozenWeights::stored_name(const Value& value) const {
  std::string unique = concat(value.name(), "/stored");
  while (is_taken(unique)) unique += "_";
  return unique;
}

bool FrozenWeights::is_taken(const std::string& name) const {
  const auto has = [&](const EntryPoint& entry) {
    return entry.algorithm->find(name) || entry.initialization->find(name);
  };
  return model_.graph->find(name) || std::ranges::any_of(model_.entry_points, has);
}

void FrozenWeights::write(const Value& value, onnx::TensorProto* tensor, onnx::NodeProto* cast,
                          Contents* contents) const {
  const Tensor& narrow = *stored(value);
  tensor->set_name(stored_name(value));
  tensor->set_data_type(static_cast<int>(stored_type(value, narrow)));
  add_property(tensor->mutable_metadata_props(), kWidened, value.name());
  put_beside(narrow, contents, tensor);
  cast->set_op_type("Cast");
  cast->set_name(concat(value.name(), "/widened"));
  cast->add_input(tensor->name());
  cast->add_output(value.name());
  auto* to = cast->add_attribute();
  to->set_name("to");
  to->set_type(onnx::AttributeProto::INT);
  to->set_i(static_cast<int64_t>(value.dtype()));
}

void widen_stored_weights(ModelMessage* message, const std::set<std::string>& names) {
  const auto widen = [&](onnx::GraphProto* graph) {
    const StoredWeights stored(*graph);
    auto* nodes = graph->mutable_node();
    for (int i = nodes->size() - 1; i >= 0; --i) {
      if (stored.contains(nodes->Get(i)) && names.contains(nodes->Get(i).output(0))) nodes->DeleteSubrange(i, 1);
    }
    for (auto& tensor : *graph->mutable_initializer()) {
      if (!stored.contains(tensor) || !names.contains(*find_property(tensor.metadata_props(), kWidened))) continue;
      const Tensor wide = wide_contents(tensor, message->contents);
      tensor.set_name(std::string(*find_property(tensor.metadata_props(), kWidened)));
      tensor.set_data_type(static_cast<int>(wide.dtype()));
      remove_property(kWidened, tensor.mutable_metadata_props());
      put_beside(wide, &message->contents, &tensor);
    }
  };
  widen(message->proto.mutable_graph());
  for (auto& info : *message->proto.mutable_training_info()) widen(info.mutable_algorithm());
}

}  // namespace onnx_train
