#include "onnx_passes/inference/inference_cache.h"

#include "onnx_passes/inference/check_types.h"
#include "onnx_passes/inference/elements.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

void append(int64_t number, std::string* key) { key->append(reinterpret_cast<const char*>(&number), sizeof number); }

// Prefixed with its length, so that different lists of parts give different keys.
void append(const std::string& text, std::string* key) {
  append(static_cast<int64_t>(text.size()), key);
  *key += text;
}

void append(const Dims& dims, std::string* key) {
  append(static_cast<int64_t>(dims.size()), key);
  for (const Dim& dim : dims) {
    append(dim.known() ? 1 : 0, key);
    dim.known() ? append(dim.value(), key) : append(dim.symbol(), key);
  }
}

void append(const std::optional<Dims>& dims, std::string* key) {
  append(dims ? 1 : 0, key);
  if (dims) append(*dims, key);
}

void append(const TensorType& type, std::string* key) {
  append(static_cast<int64_t>(type.dtype), key);
  append(type.dims, key);
}

// False for a constant vector that is too long to compare.
bool append_contents(const Value& value, std::string* key) {
  append(value.elements(), key);
  if (value.elements() || !value.has_rank() || value.rank() > 1) return true;
  const bool small = value.type().is_static() && num_elements(value.type().shape()) <= kMaxElements;
  const bool constant = (value.is_initializer() && !value.graph().is_input(&value)) ||
                        (value.producer() && value.producer()->is("Constant"));
  if (!constant) return true;
  if (!small) return false;
  const Tensor contents = constant_of(&value);
  append(std::string(static_cast<const char*>(contents.data()), contents.bytes()), key);
  return true;
}

bool append(const Node& node, std::string* key) {
  if (node.inputs().empty() || !node.subgraphs().empty()) return false;
  for (const std::string* name : {&node.op(), &node.domain(), &node.overload()}) append(*name, key);
  append(static_cast<int64_t>(node.shell().attribute_size()), key);
  for (const auto& attribute : node.shell().attribute()) append(attribute.SerializeAsString(), key);
  for (const Value* input : node.inputs()) {
    append(input ? 1 : 0, key);
    if (!input) continue;
    append(input->type(), key);
    if (!append_contents(*input, key)) return false;
  }
  for (const Value* output : node.outputs()) {
    append(output ? 1 : 0, key);
    if (!output) continue;
    append(output->type(), key);
    append(output->elements(), key);
  }
  return true;
}

constexpr size_t kMaxBody = 1 << 16;

bool calls_functions(const onnx::FunctionProto& function) {
  for (const auto& node : function.node()) {
    if (!node.domain().empty() && node.domain() != "ai.onnx") return true;
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g() || attribute.graphs_size() > 0) return true;
    }
  }
  return false;
}

}  // namespace

std::string key_of_call(const onnx::FunctionProto& function, const Node& call) {
  if (function.node_size() > 100 || calls_functions(function)) return "";
  std::string key;
  append(function.SerializeAsString(), &key);
  if (key.size() > kMaxBody) return "";
  append(call.graph().context().opset(), &key);
  for (const auto& attribute : call.shell().attribute()) append(attribute.SerializeAsString(), &key);
  append(static_cast<int64_t>(call.num_outputs()), &key);
  for (const Value* input : call.inputs()) {
    append(input ? 1 : 0, &key);
    if (!input) continue;
    append(input->type(), &key);
    // Inference no longer reads the constants, so they are not compared.
    if (append_contents(*input, &key)) continue;
    append(-1, &key);
  }
  return key;
}

void InferenceCache::infer(Node* node) {
  key_.clear();
  const bool has_key = append(*node, &key_);
  const auto found = has_key ? known_.find(key_) : known_.end();
  if (found == known_.end()) {
    check_equal_types(*node);
    infer_types(node);
    if (!has_key) return;
    std::vector<Inferred> inferred;
    for (const Value* output : node->outputs()) {
      inferred.push_back(output ? Inferred{output->type(), output->elements()} : Inferred{});
    }
    known_.emplace(key_, std::move(inferred));
    return;
  }
  for (size_t i = 0; i < found->second.size(); ++i) {
    Value* output = node->outputs()[i];
    if (!output) continue;
    output->set_type(found->second[i].type);
    output->set_elements(found->second[i].elements);
  }
}

}  // namespace onnx_train
