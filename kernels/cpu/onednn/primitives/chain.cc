#include "kernels/cpu/onednn/primitives/chain.h"

#include <memory>

#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

using Desc = dnnl::memory::desc;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

}  // namespace

Chain::Chain() : engine_(cpu_engine()), stream_(engine_) {}

dnnl::primitive_attr Chain::attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

OneDnnOperand Chain::scratch(const Desc& layout) { return {workspace_.reserve(layout.get_size()), layout}; }

OneDnnOperand Chain::in_layout(const OneDnnOperand& from, const Desc& to) {
  if (from.layout == to) return from;
  const OneDnnOperand copy = scratch(to);
  reorder(from, copy);
  return copy;
}

OneDnnOperand Chain::staged(const OneDnnOperand& to, const Desc& made) {
  return to.layout == made ? to : scratch(made);
}

void Chain::reorder(const OneDnnOperand& from, const OneDnnOperand& to) {
  if (from.layout == to.layout && from.place == to.place) return;
  add(dnnl::reorder::primitive_desc(engine_, from.layout, engine_, to.layout, attributes()),
      {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

void Chain::add(const dnnl::primitive_desc_base& primitive,
                const std::vector<std::pair<int, OneDnnOperand>>& operands) {
  Step step;
  step.primitive = dnnl::primitive(primitive.get());
  const auto bind = [&](int argument, const OneDnnOperand& operand) {
    step.memories.push_back(dnnl::memory(operand.layout, engine_, DNNL_MEMORY_NONE));
    step.places.push_back(operand.place);
    step.arguments.push_back({argument, step.memories.back().get()});
  };
  for (const auto& [argument, operand] : operands) bind(argument, operand);
  if (const Desc scratchpad = primitive.scratchpad_desc(); scratchpad.get_size() > 0) {
    bind(DNNL_ARG_SCRATCHPAD, scratch(scratchpad));
  }
  steps_.push_back(std::move(step));
}

void Chain::run(const Launch& launch) {
  // Uses the C interface, because the C++ one copies the arguments into a container on every call.
  for (const Step& step : steps_) {
    for (size_t i = 0; i < step.places.size(); ++i) {
      dnnl_memory_set_data_handle(step.arguments[i].memory, address(step.places[i], launch));
    }
    const auto status = dnnl_primitive_execute(step.primitive.get(), stream_.get(),
                                               static_cast<int>(step.arguments.size()), step.arguments.data());
    if (status != dnnl_success) fail("oneDNN could not run a prepared primitive: status ", static_cast<int>(status));
  }
}

Prepared prepare_chain(const NodeSpec& spec, const std::function<void(Chain&)>& build) {
  const auto chain = std::make_shared<Chain>();
  try {
    build(*chain);
  } catch (const dnnl::error& error) {
    fail(spec.node().label(), ": oneDNN refuses it: ", error.what());
  }
  return {[chain](const Launch& launch) { chain->run(launch); }, chain->workspace(), {}};
}

dnnl::memory::data_type data_type(DType dtype) {
  return dtype == DType::kBFloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

Desc row_major(const Shape& shape, DType dtype) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
  return {shape, data_type(dtype), strides};
}

}  // namespace onnx_train::cpu
