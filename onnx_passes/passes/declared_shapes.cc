#include "onnx_passes/passes/declared_shapes.h"

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

bool is_16_bit(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// Symbolic and unknown sizes match everything; 16-bit floats count as widened.
bool contradict(const TensorType& declared, const TensorType& found) {
  if (declared.dtype == DType::kUndefined || found.dtype == DType::kUndefined) return false;
  const bool widened = is_16_bit(declared.dtype) && found.dtype == DType::kFloat;
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

TensorType type_of(const onnx::TensorProto& tensor) {
  return {static_cast<DType>(tensor.data_type()), Dims(tensor.dims().begin(), tensor.dims().end())};
}

void compare(const std::string& what, const TensorType& declared, const TensorType& found,
             std::vector<Contradiction>* all) {
  if (contradict(declared, found)) all->push_back({what, declared, found});
}

}  // namespace

Declarations::Declarations(Graph* graph) {
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
  std::string text;
  for (size_t i = 0; i < contradictions.size() && i < kMaxShown; ++i) {
    const Contradiction& c = contradictions[i];
    text += concat(i == 0 ? "" : "; ", c.what, " is declared as ", to_string(c.declared), ", but it is ",
                   to_string(c.found));
  }
  if (contradictions.size() > kMaxShown) text += concat("; and ", contradictions.size() - kMaxShown, " more");
  return text;
}

}  // namespace onnx_train
