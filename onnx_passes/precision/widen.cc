#include "onnx_passes/precision/widen.h"

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

// Role of an initializer during import: its original type. Metadata of the model: "onnx_train.type.<name>".
constexpr const char* kKey = "onnx_train.type";

TensorType widened(TensorType type) {
  if (is_16_bit_float(type.dtype)) type.dtype = DType::kFloat;
  return type;
}

void set_entry(google::protobuf::RepeatedPtrField<onnx::StringStringEntryProto>* entries, const std::string& key,
               const std::string& value) {
  auto* entry = entries->Add();
  entry->set_key(key);
  entry->set_value(value);
}

onnx::TensorProto widened(const onnx::TensorProto& tensor) {
  onnx::TensorProto wide;
  to_proto(from_proto(tensor).cast(DType::kFloat), tensor.name(), &wide);
  *wide.mutable_metadata_props() = tensor.metadata_props();
  set_entry(wide.mutable_metadata_props(), kKey, name(static_cast<DType>(tensor.data_type())));
  return wide;
}

// The same. Large contents are beside the message, and stay 16 bits in memory until somebody reads them.
std::shared_ptr<const onnx::TensorProto> widened_initializer(const Value& value) {
  onnx::TensorProto wide;
  wide.set_name(value.name());
  *wide.mutable_metadata_props() = value.initializer()->metadata_props();
  set_entry(wide.mutable_metadata_props(), kKey, name(static_cast<DType>(value.initializer()->data_type())));
  return make_initializer(std::move(wide), Tensor::widened(stored_contents(value)));
}

// The type that casts, random nodes, windows and quantization have as an attribute.
bool names_type(const onnx::AttributeProto& attribute) {
  const std::string& name = attribute.name();
  return attribute.type() == onnx::AttributeProto::INT &&
         (name == "to" || name == "dtype" || name == "output_dtype" || name == "output_datatype");
}

int64_t widen_attributes(Node* node) {
  int64_t count = 0;
  std::vector<onnx::AttributeProto> changed;
  for (const auto& attribute : node->shell().attribute()) {
    const bool tensor = attribute.has_t() && is_16_bit_float(static_cast<DType>(attribute.t().data_type()));
    if (!tensor && !(names_type(attribute) && is_16_bit_float(static_cast<DType>(attribute.i())))) continue;
    onnx::AttributeProto wide;
    wide.set_name(attribute.name());
    wide.set_type(attribute.type());
    if (tensor) {
      *wide.mutable_t() = widened(attribute.t());
      ++count;
    } else {
      wide.set_i(static_cast<int64_t>(DType::kFloat));
    }
    changed.push_back(std::move(wide));
  }
  for (const auto& attribute : changed) node->set_attr(attribute);
  return count;
}

int64_t widen(Graph* graph) {
  int64_t count = 0;
  for (Value* value : graph->initializers()) {
    if (!is_16_bit_float(static_cast<DType>(value->initializer()->data_type()))) continue;
    graph->set_initializer(value, widened_initializer(*value));
    ++count;
  }
  for (Value* value : graph->initializers()) value->set_type(widened(value->type()));
  for (Value* input : graph->inputs()) {
    count += is_16_bit_float(input->dtype()) && !input->is_initializer();
    input->set_type(widened(input->type()));
  }
  for (Node* node = graph->first(); node; node = node->next()) {
    if (node->domain().empty()) count += widen_attributes(node);
    for (Value* output : node->outputs()) {
      if (output) output->set_type(widened(output->type()));
    }
    for (const auto& subgraph : node->subgraphs()) count += widen(subgraph.graph.get());
  }
  return count;
}

}  // namespace

int64_t widen(Model* model) {
  const int64_t count = widen(model->graph.get());
  const onnx::GraphProto& shell = model->graph->shell();
  for (const auto* infos : {&shell.input(), &shell.output()}) {
    for (const auto& info : *infos) {
      const DType dtype = from_proto(info.type()).dtype;
      if (is_16_bit_float(dtype)) model->set_metadata(concat(kKey, ".", info.name()), name(dtype));
    }
  }
  return count;
}

void remove_idle_casts(Graph* graph) {
  for (Node *node = graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    for (const auto& subgraph : node->subgraphs()) remove_idle_casts(subgraph.graph.get());
    const Value* x = node->input(0);
    const bool idle = (node->is("Cast") || node->is("CastLike")) && x && node->output() &&
                      x->dtype() == DType::kFloat && node->output()->dtype() == DType::kFloat;
    // An output that is an input itself, or another output, keeps its node.
    const bool apart =
        idle && graph->is_output(node->output()) && (!x->producer() || &x->graph() != graph || graph->is_output(x));
    if (!idle || apart) continue;
    graph->replace(node->output(), node->input(0));
    graph->remove(node);
  }
}

void record_original_types(Model* model) {
  for (const Value* value : model->graph->initializers()) {
    for (const auto& entry : value->initializer()->metadata_props()) {
      if (entry.key() == kKey) model->set_metadata(concat(kKey, ".", value->name()), entry.value());
    }
  }
}

OriginalTypes original_types(const Model& model) {
  OriginalTypes types;
  const std::string prefix = concat(kKey, ".");
  for (const auto& entry : model.shell().metadata_props()) {
    if (!entry.key().starts_with(prefix)) continue;
    types[entry.key().substr(prefix.size())] = entry.value() == "float16" ? DType::kFloat16 : DType::kBFloat16;
  }
  return types;
}

}  // namespace onnx_train
