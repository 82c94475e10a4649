#include "onnx_passes/inference/inference.h"

#include <onnx/defs/shape_inference.h>

#include <algorithm>
#include <map>

#include "onnx_passes/inference/check_types.h"
#include "onnx_passes/inference/elements.h"
#include "onnx_passes/inference/inference_cache.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/inference/schema.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/windows.h"

namespace onnx_train {
namespace {

onnx::TensorShapeProto to_shape_proto(const Dims& dims) {
  onnx::TensorShapeProto shape;
  for (const Dim& d : dims) {
    auto* out = shape.add_dim();
    if (d.known()) {
      out->set_dim_value(d.value());
    } else if (!d.symbol().empty()) {
      out->set_dim_param(d.symbol());
    }
  }
  return shape;
}

Dims from_shape_proto(const onnx::TensorShapeProto& shape) {
  Dims dims;
  for (const auto& d : shape.dim()) {
    dims.push_back(d.has_dim_value() ? Dim(static_cast<int64_t>(d.dim_value())) : Dim(d.dim_param()));
  }
  return dims;
}

bool all_known(const Dims& dims) {
  for (const Dim& d : dims) {
    if (!d.known()) return false;
  }
  return true;
}

class SubgraphInferencer : public onnx::GraphInferencer {
 public:
  // The first `counters` inputs keep the shapes that they have, those of scalars if they have none: ONNX leaves open
  // the shapes of a Loop's counter and condition, and ONNX Runtime needs them.
  SubgraphInferencer(Graph* graph, size_t counters) : graph_(graph), counters_(counters) {}
  std::vector<const onnx::TypeProto*> doInferencing(const std::vector<const onnx::TypeProto*>& inputs,
                                                    const std::vector<const onnx::TensorProto*>&) override {
    for (size_t i = 0; i < inputs.size() && i < graph_->inputs().size(); ++i) {
      if (!inputs[i]) continue;
      TensorType type = from_proto(*inputs[i]);
      if (i < counters_ && !type.dims) type.dims = graph_->inputs()[i]->type().dims.value_or(Dims{});
      graph_->inputs()[i]->set_type(std::move(type));
    }
    infer_types(graph_);
    types_.resize(graph_->outputs().size());
    std::vector<const onnx::TypeProto*> result;
    for (size_t i = 0; i < types_.size(); ++i) {
      to_proto(graph_->outputs()[i]->type(), &types_[i]);
      result.push_back(&types_[i]);
    }
    return result;
  }

 private:
  Graph* graph_;
  const size_t counters_;
  std::vector<onnx::TypeProto> types_;
};

// The adapter of a node to ONNX's inference functions.
class NodeContext : public onnx::InferenceContext, public onnx::DataPropagationContext {
 public:
  explicit NodeContext(Node* node) : node_(node) {
    const auto n = static_cast<size_t>(node->num_inputs());
    types_.resize(n);
    data_.resize(n);
    shapes_.resize(n);
    for (size_t i = 0; i < n; ++i) read_input(i);
    outputs_.resize(static_cast<size_t>(node->num_outputs()));
    elements_.resize(outputs_.size());
  }

  const onnx::AttributeProto* getAttribute(const std::string& name) const override { return node_->find_attr(name); }
  size_t getNumInputs() const override { return types_.size(); }
  bool hasInput(size_t i) const override { return node_->input(static_cast<int>(i)) != nullptr; }
  const onnx::TypeProto* getInputType(size_t i) const override {
    return i < types_.size() && types_[i].value_case() != onnx::TypeProto::VALUE_NOT_SET ? &types_[i] : nullptr;
  }
  const onnx::TensorProto* getInputData(size_t i) const override { return i < data_.size() ? data_[i].get() : nullptr; }
  const onnx::SparseTensorProto* getInputSparseData(size_t) const override { return nullptr; }
  const onnx::TensorShapeProto* getSymbolicInput(size_t i) const override {
    return i < shapes_.size() && shapes_[i] ? &*shapes_[i] : nullptr;
  }
  size_t getNumOutputs() const override { return outputs_.size(); }
  bool hasOutput(size_t i) override { return node_->output(static_cast<int>(i)) != nullptr; }
  onnx::TypeProto* getOutputType(size_t i) override { return i < outputs_.size() ? &outputs_[i] : nullptr; }
  onnx::GraphInferencer* getGraphAttributeInferencer(const std::string& name) override {
    for (const auto& subgraph : node_->subgraphs()) {
      if (subgraph.attribute != name) continue;
      inferencers_.push_back(std::make_unique<SubgraphInferencer>(subgraph.graph.get(), node_->is("Loop") ? 2 : 0));
      return inferencers_.back().get();
    }
    return nullptr;
  }
  std::string getDisplayName() const override { return node_->label(); }

  // DataPropagationContext
  const onnx::TypeProto* getOutputType(size_t i) const override { return i < outputs_.size() ? &outputs_[i] : nullptr; }
  const onnx::TensorShapeProto* getInputData(size_t i) override {
    return i < shapes_.size() && shapes_[i] ? &*shapes_[i] : nullptr;
  }
  void addOutputData(size_t i, onnx::TensorShapeProto&& shape) override {
    if (i < elements_.size()) elements_[i] = from_shape_proto(shape);
  }

  // Writes the inferred types to the node's outputs.
  void store() {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      Value* value = node_->output(static_cast<int>(i));
      if (!value) continue;
      TensorType type = from_proto(outputs_[i]);
      expect_sizes(type);
      merge(std::move(type), value);
      if (elements_[i]) value->set_elements(std::move(elements_[i]));
    }
  }

 private:
  void read_input(size_t i) {
    const Value* value = node_->input(static_cast<int>(i));
    if (!value) return;
    if (value->dtype() != DType::kUndefined) to_proto(value->type(), &types_[i]);
    if (!value->has_rank() || value->rank() > 1) return;
    if (value->elements()) {
      shapes_[i] = to_shape_proto(*value->elements());
      if (all_known(*value->elements())) {
        data_[i] = std::make_unique<onnx::TensorProto>();
        to_proto(constant_of(value), value->name(), data_[i].get());
      }
      return;
    }
    if (value->type().is_static() && num_elements(value->type().shape()) > kMaxElements) return;
    if (Tensor constant = constant_of(value); !constant.empty() && constant.size() <= kMaxElements) {
      data_[i] = std::make_unique<onnx::TensorProto>();
      to_proto(constant, value->name(), data_[i].get());
      if (const auto elements = elements_of(constant)) shapes_[i] = to_shape_proto(*elements);
    }
  }

  // ONNX computes sizes from its operands and from constants without checking the results.
  void expect_sizes(const TensorType& type) const {
    const auto is_negative = [](const Dim& dim) { return dim.known() && dim.value() < 0; };
    if (type.dims && std::any_of(type.dims->begin(), type.dims->end(), is_negative))
      fail(node_->label(), ": its output would be ", to_string(type), "; no size may be negative");
  }

  static void merge(TensorType inferred, Value* value) {
    if (inferred.dtype == DType::kUndefined) return;
    const TensorType& known = value->type();
    if (known.dtype == inferred.dtype && known.dims) {
      if (!inferred.dims) return;
      if (known.rank() == inferred.rank()) {
        for (size_t i = 0; i < inferred.dims->size(); ++i) {
          Dim& dim = (*inferred.dims)[i];
          if (!dim.known() && ((*known.dims)[i].known() || dim.symbol().empty())) dim = (*known.dims)[i];
        }
      }
    }
    value->set_type(std::move(inferred));
  }

  Node* node_;
  std::vector<onnx::TypeProto> types_;
  std::vector<std::unique_ptr<onnx::TensorProto>> data_;
  std::vector<std::optional<onnx::TensorShapeProto>> shapes_;
  std::vector<onnx::TypeProto> outputs_;
  std::vector<std::optional<Dims>> elements_;
  std::vector<std::unique_ptr<SubgraphInferencer>> inferencers_;
};

// A shape of known length but unknown sizes still gives the rank of a result.
std::optional<Dims> unknown_elements(const TensorType& type) {
  const bool integer = type.dtype == DType::kInt64 || type.dtype == DType::kInt32;
  if (!integer || !type.is_static() || type.rank() != 1) return std::nullopt;
  const int64_t length = type.shape()[0];
  return length <= kMaxElements ? std::optional(Dims(static_cast<size_t>(length))) : std::nullopt;
}

// The types of a function's outputs, inferred from its body; undefined if the body does not determine them.
std::vector<TensorType> infer_body(const Node* node, const onnx::FunctionProto& function) {
  Graph scratch(node->graph().shared_context());
  std::vector<Value*> inputs;
  for (int i = 0; i < node->num_inputs(); ++i) {
    const Value* actual = node->input(i);
    Value* formal = nullptr;
    if (actual) {
      const std::string name = concat("in", i);
      const TensorType& type = actual->type();
      const bool small = !type.dims || !type.is_static() || num_elements(type.shape()) <= kMaxElements;
      Tensor constant = small && actual->has_rank() && actual->rank() <= 1 ? constant_of(actual) : Tensor();
      formal = constant.empty() ? scratch.add_input(name, actual->type()) : scratch.add_initializer(name, constant);
      formal->set_elements(actual->elements());
    }
    inputs.push_back(formal);
  }
  const auto outputs = instantiate(function, node->shell(), &scratch, nullptr, inputs, "f");
  for (Node* n = scratch.first(); n; n = n->next()) infer_types(n);
  std::vector<TensorType> types;
  for (const Value* output : outputs) types.push_back(output ? output->type() : TensorType());
  return types;
}

// A training step calls its optimizer once per weight: equal calls are inferred only once. The cache belongs to a pure
// function, and each thread has its own.
const std::vector<TensorType>& infer_once(const Node* node, const onnx::FunctionProto& function) {
  constexpr size_t kMaxBytes = 1 << 24;
  thread_local std::unordered_map<std::string, std::vector<TensorType>> known;
  thread_local size_t bytes = 0;
  std::string key = key_of_call(function, *node);
  if (const auto found = known.find(key); !key.empty() && found != known.end()) return found->second;
  std::vector<TensorType> types = infer_body(node, function);  // may infer other calls
  if (bytes > kMaxBytes) known.clear(), bytes = 0;
  bytes += key.size();
  return known[key] = std::move(types);
}

// ONNX's inference of Split reads a size for each output, however many sizes there are.
void expect_parts(const Node& split) {
  const int64_t outputs = split.num_outputs();
  int64_t parts = split.attr("num_outputs", outputs);
  if (const Value* sizes = split.input(1)) {
    const TensorType& type = sizes->type();
    parts = type.is_static() && type.rank() == 1 ? type.shape()[0] : outputs;
  }
  if (parts != outputs) fail(split.label(), ": it makes ", parts, " parts and has ", outputs, " outputs");
}

// ONNX leaves the shapes open of what a Loop carries, because a body may change them: those that it keeps are known.
void keep_loop_shapes(Node* node) {
  Graph* body = node->subgraph("body");
  const auto inputs = static_cast<size_t>(std::max(node->num_inputs(), 2));
  if (!body || body->inputs().size() != inputs || body->outputs().size() + 1 < inputs) return;
  for (size_t i = 2; i < inputs; ++i) body->inputs()[i]->set_type(node->input(static_cast<int>(i))->type());
  infer_types(body);
  for (size_t i = 0; i + 2 < inputs; ++i) {
    const TensorType& type = body->inputs()[i + 2]->type();
    Value* output = node->output(static_cast<int>(i));
    if (output && same(type, body->outputs()[i + 1]->type())) output->set_type(type);
  }
}

// The outputs of a call have the types that the function's body gives them.
void infer_call(Node* node, const onnx::FunctionProto& function) {
  const std::vector<TensorType>& types = infer_once(node, function);
  for (size_t i = 0; i < types.size(); ++i) {
    Value* value = node->output(static_cast<int>(i));
    if (value && types[i].dtype != DType::kUndefined) value->set_type(types[i]);
  }
}

}  // namespace

namespace {

// Nothing for strings and types smaller than a byte, whose contents are not used.
Tensor numbers_of(const onnx::TensorProto& proto) {
  const auto dtype = static_cast<DType>(proto.data_type());
  return is_float(dtype) || is_integer(dtype) || dtype == DType::kBool ? from_proto(proto) : Tensor();
}

}  // namespace

Tensor constant_of(const Value* value) {
  if (!value) return {};
  if (value->is_initializer() && !value->graph().is_input(value)) {
    return contents_beside(value->shared_initializer()) ? contents_of(*value) : numbers_of(*value->initializer());
  }
  if (value->elements() && value->has_rank() && value->rank() <= 1 && all_known(*value->elements())) {
    std::vector<int64_t> ints;
    for (const Dim& d : *value->elements()) ints.push_back(d.value());
    const Tensor tensor = value->rank() == 0 ? Tensor::ints(ints).reshaped({}) : Tensor::ints(ints);
    return value->dtype() == DType::kInt64 ? tensor : tensor.cast(value->dtype());
  }
  const Node* node = value->producer();
  if (!node || !node->is("Constant")) return {};
  if (const auto* a = node->find_attr("value")) return numbers_of(a->t());
  if (node->has_attr("value_int")) return Tensor::scalar<int64_t>(node->attr("value_int", 0));
  if (node->has_attr("value_float")) return Tensor::scalar<float>(node->attr("value_float", 0.0f));
  if (node->has_attr("value_ints")) return Tensor::ints(node->attr("value_ints", std::vector<int64_t>{}));
  if (node->has_attr("value_floats")) {
    const auto values = node->attr("value_floats", std::vector<float>{});
    return Tensor::of<float>({static_cast<int64_t>(values.size())}, values);
  }
  return {};
}

const onnx::OpSchema* find_schema(const Node& node) {
  const auto version = node.graph().context().opset(node.domain());
  return onnx::OpSchemaRegistry::Schema(node.op(), static_cast<int>(version), node.domain());
}

bool is_known_operator(const Node& node) {
  if (node.graph().context().find_function(node.domain(), node.op(), node.overload())) return true;
  const onnx::OpSchema* schema = find_schema(node);
  return schema && (node.domain().empty() || schema->HasFunction() || schema->HasContextDependentFunction());
}

namespace {

// Whether a model that was converted to float64 computes here with what ONNX names in float32 alone, as Celu: the one
// choice of a type variable, not a type of its own, such as that of Resize's scales.
bool is_widened(const Node& node, const onnx::OpSchema& schema) {
  const size_t count = std::min(static_cast<size_t>(node.num_inputs()), schema.inputs().size());
  for (size_t i = 0; i < count; ++i) {
    const Value* input = node.input(static_cast<int>(i));
    const auto& formal = schema.inputs()[i];
    const bool only_float = formal.GetTypes().size() == 1 && **formal.GetTypes().begin() == "tensor(float)";
    if (input && input->dtype() == DType::kDouble && only_float && formal.GetTypeStr() != "tensor(float)") return true;
  }
  return false;
}

}  // namespace

void check_types(Node* node) {
  const onnx::OpSchema* schema = find_schema(*node);
  if (!schema) return;
  if (is_widened(*node, *schema)) return check_equal_types(*node);
  try {
    NodeContext context(node);
    schema->CheckInputOutputType(context);
  } catch (const std::exception& error) {
    fail(node->label(), ": ", error.what());
  }
}

void check_equal_types(const Node& node) {
  const onnx::OpSchema* schema = find_schema(node);
  if (!schema || schema->inputs().empty()) return;
  std::map<std::string, const Value*> first_of;  // by the letter that the schema gives their type
  for (int i = 0; i < node.num_inputs(); ++i) {
    const auto& formal = schema->inputs()[std::min(static_cast<size_t>(i), schema->inputs().size() - 1)];
    const Value* input = node.input(i);
    if (!input || input->dtype() == DType::kUndefined || !formal.GetIsHomogeneous()) continue;
    const Value* first = first_of.emplace(formal.GetTypeStr(), input).first->second;
    if (first->dtype() == input->dtype()) continue;
    fail(node.label(), ": its inputs '", first->name(), "' of type ", name(first->dtype()), " and '", input->name(),
         "' of type ", name(input->dtype()), " must have one type");
  }
}

void infer_types(Node* node) {
  if (const auto* function = node->graph().context().find_function(node->domain(), node->op(), node->overload())) {
    return infer_call(node, *function);
  }
  const onnx::OpSchema* schema = find_schema(*node);
  if (!schema) return;
  if (!schema->has_type_and_shape_inference_function()) {
    // GroupNormalization and MeanVarianceNormalization only: the output has the type of the input.
    if (schema->domain().empty() && node->input(0) && node->output()) node->output()->set_type(node->input(0)->type());
    return;
  }
  if (node->is("Split")) expect_parts(*node);
  try {
    NodeContext context(node);
    schema->GetTypeAndShapeInferenceFunction()(context);
    if (schema->has_data_propagation_function()) schema->GetDataPropagationFunction()(context);
    context.store();
  } catch (const Error&) {
    throw;  // from a subgraph: it already names its own node
  } catch (const std::exception& error) {
    // The outputs of unknown operators, and sequences, have no known type; that is not an error of this node.
    for (const Value* input : node->inputs()) {
      if (!input || input->dtype() != DType::kUndefined) continue;
      if (node->is("Loop")) keep_loop_shapes(node);
      return;
    }
    fail(node->label(), ": ", error.what());
  }
  const bool pool = node->is("MaxPool") || node->is("AveragePool") || node->is("LpPool");
  if (pool && node->attr("ceil_mode", 0) != 0) drop_windows_behind_input(node);
  if (node->is("Loop")) keep_loop_shapes(node);
  Value* output = node->output();
  if (!output) return;
  refine_shape(node);
  if (auto elements = follow_elements(*node)) output->set_elements(std::move(elements));
  if (!output->elements()) output->set_elements(unknown_elements(output->type()));
}

void forget_shapes(Node* node) {
  for (Value* output : node->outputs()) {
    if (!output) continue;
    output->set_type({output->dtype(), std::nullopt});
    output->set_elements(std::nullopt);
  }
}

void infer_types(Graph* graph) {
  for (Node* node = graph->first(); node; node = node->next()) infer_types(node);
}

}  // namespace onnx_train
