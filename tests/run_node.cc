#include "tests/run_node.h"

#include <cmath>
#include <limits>
#include <random>

#include "kernels/device.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

std::vector<Tensor> run_node(const std::string& op, const std::vector<Tensor>& inputs, const Attrs& attrs,
                             int num_outputs, const std::string& domain) {
  Model model = from_text("<ir_version: 10, opset_import: [\"\" : 21]> g () => () {}");
  Builder b(model.graph.get());
  std::vector<Var> vars;
  std::vector<const void*> in;
  for (const Tensor& input : inputs) {
    in.push_back(input.empty() ? nullptr : input.data());
    if (input.empty()) {
      vars.emplace_back();
    } else {
      vars.push_back(b.var(model.graph->add_initializer(concat("x", vars.size()), input)));
    }
  }
  const auto results =
      domain == kDomain ? call(b, op, num_outputs, vars, attrs) : b.ops(op, num_outputs, vars, attrs, domain);
  const NodeSpec spec(*results[0].value()->producer(), inputs, num_threads());
  const Kernel* kernel = find_kernel(Device::cpu(), spec);
  if (!kernel) fail(spec.node().label(), ": no kernel");
  const Prepared prepared = kernel->prepare(spec);

  std::vector<Tensor> outputs;
  std::vector<void*> out;
  for (const Var& result : results) {
    outputs.emplace_back(result.dtype(), result.type().shape());
    for (int64_t i = 0; i < outputs.back().size(); ++i) outputs.back().set(i, -77);  // what no kernel may leave behind
    out.push_back(outputs.back().data());
  }
  Tensor workspace(DType::kInt8, {static_cast<int64_t>(prepared.workspace)});
  prepared.run({in.data(), out.data(), workspace.data()});
  return outputs;
}

Tensor random_tensor(DType dtype, Shape shape, unsigned seed) {
  Tensor tensor(dtype, std::move(shape));
  std::mt19937 bits(seed);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(bits()) / 2147483648.0 - 1);
  return tensor;
}

double relative_error(const Tensor& actual, const Tensor& expected) {
  if (actual.shape() != expected.shape()) return std::numeric_limits<double>::infinity();
  double difference = 0, largest = 0;
  for (int64_t i = 0; i < actual.size(); ++i) {
    const double d = std::abs(actual.at(i) - expected.at(i));
    if (!(d <= difference)) difference = d;  // keeps NaN
    largest = std::max(largest, std::abs(expected.at(i)));
  }
  return largest == 0 ? difference : difference / largest;
}

}  // namespace onnx_train
