#include "onnx_passes/functions/update_body.h"

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr size_t kFirstSlot = 2;  // inputs: w, g, slots

std::string signature_of(const std::string& op, const std::vector<std::string>& slots, const FunctionCall& call) {
  std::string attributes, inputs, outputs;
  for (const Attr& attr : call.attrs) attributes += concat(attributes.empty() ? "" : ", ", attr.name);
  for (size_t i = 0; i < slots.size(); ++i) {
    inputs += slots[i] + ", ";
    if (call.inputs.at(kFirstSlot + i)) outputs += ", next_" + slots[i];
  }
  return concat(op, " <", attributes, "> (w, g, ", inputs, "int64 step, learning_rate, grad_scale) => (next_w", outputs,
                ")");
}

}  // namespace

UpdateBody::UpdateBody(const std::string& op, const std::vector<std::string>& slots, const FunctionCall& call)
    : Body(signature_of(op, slots, call), call) {
  same_type("g", "w");
  for (const std::string& slot : slots) {
    same_type(slot, "w");
    if (!has(slot)) depends_on("no_" + slot);
  }
}

int64_t UpdateBody::count(const std::string& name) {
  const int64_t value = call().integer(name);
  depends_on(concat(name, value));
  return value;
}

bool UpdateBody::flag(const std::string& name) {
  const bool value = call().integer(name) != 0;
  if (value) depends_on(name);
  return value;
}

bool UpdateBody::is_zero(const std::string& name) {
  const Attr* attr = call().find(name);
  const bool zero = !attr || std::get<Tensor>(attr->value).holds_only(0);
  if (zero) depends_on("no_" + name);
  return zero;
}

}  // namespace onnx_train
