#include "tests/op_cases/make_case.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

#define ONNX_TRAIN_FAMILY(name) std::vector<OpCase> name##_cases();
#include "tests/op_cases/families.def"

std::vector<OpCase> all_cases() {
  std::vector<OpCase> all;
  for (const auto& family : std::initializer_list<std::vector<OpCase> (*)()>{
#define ONNX_TRAIN_FAMILY(name) name##_cases,
#include "tests/op_cases/families.def"
       }) {
    for (OpCase& row : family()) all.push_back(std::move(row));
  }
  return all;
}

namespace {

bool near_kink(const OpInput& spec, double x) {
  for (double kink : spec.away_from) {
    if (std::abs(x - kink) < 0.05) return true;
  }
  return false;
}

Tensor draw(const OpInput& spec, std::mt19937_64& random) {
  if (!spec.value.empty()) return spec.value;
  const bool floating = is_float(spec.dtype);
  Tensor tensor(floating ? DType::kDouble : spec.dtype, spec.shape);
  std::uniform_real_distribution<double> uniform(spec.low, spec.high);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    double x = uniform(random);
    while (near_kink(spec, x)) x = uniform(random);
    // Rounded to float32, so that both precisions compute on the same numbers.
    tensor.set(i, floating ? static_cast<double>(static_cast<float>(x)) : std::floor(x));
  }
  if (spec.distinct && tensor.size() > 1) {
    std::vector<double> values;
    for (int64_t i = 0; i < tensor.size(); ++i) {
      values.push_back(spec.low + (spec.high - spec.low) * static_cast<double>(i) / static_cast<double>(tensor.size()));
    }
    std::shuffle(values.begin(), values.end(), random);
    for (int64_t i = 0; i < tensor.size(); ++i)
      tensor.set(i, static_cast<double>(static_cast<float>(values[static_cast<size_t>(i)])));
  }
  return tensor;
}

}  // namespace

std::vector<Tensor> draw_inputs(const OpCase& row) {
  std::mt19937_64 random(12345);
  std::vector<Tensor> inputs;
  for (const OpInput& spec : row.inputs) inputs.push_back(spec.absent ? Tensor() : draw(spec, random));
  return inputs;
}

DType type_in(const OpInput& spec, const Tensor& tensor, DType precision) {
  if (!is_float(tensor.dtype()) || spec.single) return tensor.dtype();
  return spec.value.empty() || spec.value.dtype() == DType::kFloat ? precision : tensor.dtype();
}

Case make_case(const OpCase& row, const std::vector<Tensor>& inputs, DType precision, bool dynamic) {
  Case made;
  made.model.context->opsets[""] = row.opset;
  Graph& graph = *made.model.graph;
  Builder b(&graph);
  std::vector<Var> arguments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const OpInput& spec = row.inputs[i];
    if (spec.absent) {
      made.inputs.push_back(nullptr);
      arguments.emplace_back();
      continue;
    }
    const DType dtype = type_in(spec, inputs[i], precision);
    const std::string name = concat("x", i);
    if (spec.constant) {
      made.inputs.push_back(
          graph.add_initializer(name, inputs[i].dtype() == dtype ? inputs[i] : inputs[i].cast(dtype)));
    } else {
      Dims dims(inputs[i].shape().begin(), inputs[i].shape().end());
      if (dynamic && i == 0 && !dims.empty()) dims[0] = Dim("N");
      made.inputs.push_back(graph.add_input(name, {dtype, dims}));
    }
    arguments.push_back(b.var(made.inputs.back()));
  }
  b.set_name("y");
  const auto outputs = row.domain == kDomain ? call_lowered(b, row.op, row.num_outputs, arguments, row.attrs)
                                             : b.ops(row.op, row.num_outputs, arguments, row.attrs, row.domain);
  for (const Var& output : outputs) {
    made.outputs.push_back(output.value());
    graph.add_output(output.value());
  }
  return made;
}

}  // namespace onnx_train
