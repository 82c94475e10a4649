#include "tests/support/run_node.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/device.h"
#include "kernels/functions/functions.h"
#include "kernels/host.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

PreparedNode::PreparedNode(const std::string& op, std::vector<Tensor> inputs, const Attrs& attrs, int num_outputs,
                           const std::string& domain)
    : model_(from_text("<ir_version: 10, opset_import: [\"\" : 21]> g () => () {}")), inputs_(std::move(inputs)) {
  Builder b(model_.graph.get());
  std::vector<Var> vars;
  for (const Tensor& input : inputs_) {
    in_.push_back(input.data());
    vars.push_back(input.empty() ? Var() : b.var(model_.graph->add_initializer(concat("x", vars.size()), input)));
  }
  const auto results =
      domain == kDomain ? call_lowered(b, op, num_outputs, vars, attrs) : b.ops(op, num_outputs, vars, attrs, domain);
  const NodeSpec spec(*results[0].value()->producer(), inputs_, num_threads());
  const Kernel* kernel = find_kernel(Device::cpu(), spec);
  if (!kernel) fail(spec.node().label(), ": no kernel");
  prepared_ = kernel->prepare(spec);
  for (const Var& result : results) {
    outputs_.emplace_back(result.dtype(), result.type().shape());
    for (int64_t i = 0; i < outputs_.back().size(); ++i) outputs_.back().set(i, -77);  // what no kernel may leave
    out_.push_back(outputs_.back().data());
  }
  workspace_ = Tensor(DType::kInt8, {static_cast<int64_t>(prepared_.workspace)});
  std::memset(workspace_.data(), 0xff, workspace_.bytes());  // NaN, for what reads before it writes
}

void PreparedNode::run() { run_now(prepared_, *model_.graph->first(), in_.data(), out_.data(), workspace_.data()); }

std::vector<Tensor> run_node(const std::string& op, const std::vector<Tensor>& inputs, const Attrs& attrs,
                             int num_outputs, const std::string& domain) {
  PreparedNode node(op, inputs, attrs, num_outputs, domain);
  node.run();
  return node.outputs();
}

int count_nodes(const Model& model, const std::string& op, const std::string& domain) {
  int count = 0;
  for (const Node* node = model.graph->first(); node; node = node->next()) count += node->is(op, domain);
  return count;
}

Tensor random_tensor(DType dtype, Shape shape, unsigned seed) {
  Tensor tensor(dtype, std::move(shape));
  std::mt19937 bits(seed);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(bits()) / 2147483648.0 - 1);
  return tensor;
}

double largest(const Tensor& tensor) {
  double most = 0;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    if (std::isfinite(tensor.at(i))) most = std::max(most, std::abs(tensor.at(i)));
  }
  return most;
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
