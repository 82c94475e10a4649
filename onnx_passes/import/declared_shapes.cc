#include "onnx_passes/import/declared_shapes.h"

#include <sstream>
#include <unordered_set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

constexpr const char* kDeclared = "onnx_train.declared";  // metadata: names, one a line

}  // namespace

bool contradict(const TensorType& declared, const TensorType& found) {
  if (declared.dtype == DType::kUndefined || found.dtype == DType::kUndefined) return false;
  const bool widened = is_16_bit_float(declared.dtype) && found.dtype == DType::kFloat;
  if (declared.dtype != found.dtype && !widened) return true;
  if (!declared.dims || !found.dims) return false;
  if (declared.rank() == 0) return false;  // writers that do not know a shape leave it empty, and runtimes accept that
  if (declared.rank() != found.rank()) return true;
  for (size_t i = 0; i < found.dims->size(); ++i) {
    const Dim &a = (*declared.dims)[i], &b = (*found.dims)[i];
    if (a.known() && a.value() >= 0 && b.known() && a.value() != b.value()) return true;
  }
  return false;
}

namespace {

TensorType type_of(const onnx::TensorProto& tensor) {
  return {static_cast<DType>(tensor.data_type()), Dims(tensor.dims().begin(), tensor.dims().end())};
}

void compare(const std::string& what, const TensorType& declared, const TensorType& found,
             std::vector<Contradiction>* all) {
  if (contradict(declared, found)) all->push_back({what, declared, found});
}

using Symbols = std::unordered_set<std::string>;

Symbols symbols_of(const std::vector<Value*>& inputs) {
  Symbols symbols;
  for (const Value* input : inputs) {
    for (const Dim& dim : input->has_rank() ? *input->type().dims : Dims()) symbols.insert(dim.symbol());
  }
  symbols.erase("");
  return symbols;
}

// A declared type as import sees the value: 16-bit floats are widened. Writers that do not know a shape leave it empty,
// which looks like a scalar, some write sizes of -1, and exporters invent names for sizes that they cannot express.
TensorType as_fact(TensorType type, const Symbols& of_inputs) {
  if (is_16_bit_float(type.dtype)) type.dtype = DType::kFloat;
  if (!type.dims) return type;
  if (type.dims->empty()) type.dims.reset();
  for (size_t i = 0; type.dims && i < type.dims->size(); ++i) {
    Dim& dim = (*type.dims)[i];
    if (dim.known() ? dim.value() < 0 : !of_inputs.contains(dim.symbol())) dim = Dim();
  }
  return type;
}

TensorType without_sizes(TensorType type) {
  if (type.dims) type.dims->assign(type.dims->size(), Dim());
  return type;
}

// Whether the declaration fixes a size that inference knows to be open.
bool is_narrower(const TensorType& declared, const TensorType& found) {
  if (!declared.dims || !found.dims || declared.rank() != found.rank()) return false;
  for (size_t i = 0; i < found.dims->size(); ++i) {
    if ((*declared.dims)[i].known() && !(*found.dims)[i].symbol().empty()) return true;
  }
  return false;
}

// `found`, completed by what `declared` says; false if that adds nothing.
bool complete(const TensorType& declared, TensorType* found) {
  if (found->dtype == DType::kUndefined) {
    *found = declared;
    return declared.dtype != DType::kUndefined;
  }
  if (!declared.dims) return false;
  if (!found->dims) {
    found->dims = declared.dims;
    return true;
  }
  bool added = false;
  for (size_t i = 0; i < found->dims->size(); ++i) {
    Dim& dim = (*found->dims)[i];
    const Dim& known = (*declared.dims)[i];
    if (dim.known() || !dim.symbol().empty() || (!known.known() && known.symbol().empty())) continue;
    dim = known;
    added = true;
  }
  return added;
}

}  // namespace

Declarations::Declarations(Graph* graph, const Sizes& sizes, bool trust_shapes)
    : trusted_(trust_shapes ? kSizes : kElementTypes) {
  for (const auto& info : graph->shell().value_info()) {
    const Value* value = graph->find(info.name());
    if (value && !value->is_initializer()) intermediates_.emplace_back(info.name(), from_proto(info.type()));
  }
  for (const auto& output : graph->shell().output()) outputs_.push_back(from_proto(output.type()));
  for (Value* value : graph->initializers()) {
    TensorType type = type_of(*value->initializer());
    compare(concat("initializer '", value->name(), "'"), value->type(), type, &initializers_);
    value->set_type(std::move(type));
  }
  read(*graph, graph->inputs(), sizes);
}

void Declarations::read(const Graph& graph, const std::vector<Value*>& inputs, const Sizes& sizes) {
  const Symbols symbols = symbols_of(inputs);
  Types& types = types_[&graph];
  for (const auto* infos : {&graph.shell().value_info(), &graph.shell().output()}) {
    for (const auto& info : *infos) {
      TensorType type = with_sizes(as_fact(from_proto(info.type()), symbols), sizes);
      if (type.dtype != DType::kUndefined) types.emplace(info.name(), std::move(type));
    }
  }
  for (const Node* node = graph.first(); node; node = node->next()) {
    for (const auto& subgraph : node->subgraphs()) read(*subgraph.graph, inputs, sizes);
  }
}

const TensorType* Declarations::of(const Value& value) const {
  const auto graph = types_.find(&value.graph());
  if (graph == types_.end()) return nullptr;
  const auto type = graph->second.find(value.name());
  return type == graph->second.end() ? nullptr : &type->second;
}

void Declarations::refine(const Node& node) {
  for (Value* output : node.outputs()) {
    const TensorType* declared = output ? of(*output) : nullptr;
    if (!declared) continue;
    TensorType type = output->type();
    const bool contradicts = contradict(*declared, type);
    if (trusted_ == kSizes && (contradicts || is_narrower(*declared, type))) trusted_ = kRanks;
    if (contradicts || !complete(trusted(*declared), &type)) continue;
    output->set_type(std::move(type));
    if (!output->graph().parent()) completed_.push_back(output->name());
  }
}

TensorType Declarations::trusted(TensorType declared) const {
  if (trusted_ == kRanks) return without_sizes(std::move(declared));
  if (trusted_ == kElementTypes) declared.dims.reset();
  return declared;
}

void Declarations::seed(const Graph& subgraph) const {
  for (const Node* node = subgraph.first(); node; node = node->next()) {
    for (Value* output : node->outputs()) {
      const TensorType* declared = output ? of(*output) : nullptr;
      if (declared && output->dtype() == DType::kUndefined) output->set_type(without_sizes(trusted(*declared)));
    }
  }
}

void Declarations::record(Model* model) const {
  Graph& graph = *model->graph;
  std::unordered_set<std::string> names;
  std::string all;
  for (const std::string& name : completed_) {
    const Value* value = graph.find(name);
    if (!value || !value->producer() || !names.insert(name).second) continue;
    all += (all.empty() ? "" : "\n") + name;
    if (!graph.is_output(value)) graph.shell().add_value_info()->set_name(name);
  }
  if (!all.empty()) model->set_metadata(kDeclared, all);
}

DeclaredFacts::DeclaredFacts(const Model& model) {
  std::istringstream names(model.metadata(kDeclared));
  for (std::string name; std::getline(names, name);) {
    const Value* value = model.graph->find(name);
    if (value && value->has_rank()) types_.emplace_back(name, value->type());
  }
}

void DeclaredFacts::expect(const Graph& graph, const Sizes& sizes) const {
  for (const auto& [name, declared] : types_) {
    const Value* value = graph.find(name);
    if (!value || !contradict(with_sizes(declared, sizes), value->type())) continue;
    fail_as(ErrorCode::kWrongDeclaration, "[Plan] the file declares '", name, "' as ", to_string(declared),
            ", but for these inputs it is ", to_string(value->type()),
            "; correct the declaration in the file, or build without it: --fix-shapes");
  }
}

std::vector<Contradiction> Declarations::of_interface(const Graph& graph) const {
  std::vector<Contradiction> all = initializers_;
  for (size_t i = 0; i < outputs_.size() && i < graph.outputs().size(); ++i) {
    const Value& output = *graph.outputs()[i];
    compare(concat("output '", output.name(), "'"), outputs_[i], output.type(), &all);
  }
  return all;
}

std::vector<Contradiction> Declarations::of_intermediates(const Graph& graph) const {
  std::vector<Contradiction> all;
  for (const auto& [name, type] : intermediates_) {
    if (const Value* value = graph.find(name)) compare(concat("value '", name, "'"), type, value->type(), &all);
  }
  return all;
}

std::string describe(const std::vector<Contradiction>& contradictions) {
  constexpr size_t kMaxShown = 3;
  const auto text_of = [](const Contradiction& c) {
    return concat(c.what, " is declared as ", to_string(c.declared), ", but it is ", to_string(c.found));
  };
  return first_few(contradictions, kMaxShown, text_of, std::string::npos, "; ");
}

}  // namespace onnx_train
