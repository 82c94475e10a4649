#include "kernels/cpu/products/inner_product.h"

#include "onnx_passes/ir/onnx.h"

namespace onnx_train::cpu {
namespace {

Dims dims_of(int64_t rows, int64_t columns) { return {rows, columns}; }

}  // namespace

InnerProduct::InnerProduct(const NodeSpec& spec, const Product& product, const Types& types, bool bias) {
  // The node that the product would be: what chooses between ways to compute it reads sizes and types there.
  Graph graph(std::make_shared<Context>());
  std::vector<Value*> inputs = {graph.add_input("a", {types.operands, dims_of(product.m, product.k)}),
                                graph.add_input("b", {types.operands, dims_of(product.k, product.n)})};
  if (bias) inputs.push_back(graph.add_input("bias", {DType::kFloat, Dims{product.n}}));
  Node* const node = graph.add_node("MatMul", inputs, {"y"});
  node->output()->set_type({types.result, dims_of(product.m, product.n)});
  node->mutable_shell().set_name(spec.node().output()->name() + "/product");
  const NodeSpec inner(*node, std::vector<Tensor>(inputs.size()), spec.threads(),
                       {.tf32 = spec.tf32(), .deterministic = spec.deterministic()}, nullptr, spec.choices());
  prepared_ = prepare_product(inner, product, bias);
}

void InnerProduct::run(const Launch& launch, const Operands& operands) const {
  const void* const inputs[] = {operands.a, operands.b, operands.bias};
  void* const outputs[] = {operands.y};
  prepared_.run({inputs, outputs, operands.scratch, launch.stream, launch.fault, launch.node});
}

}  // namespace onnx_train::cpu
