// One node on the CPU's kernel for it, outside of any plan: for tests and benchmarks of kernels alone.
#pragma once

#include "kernels/kernel.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// A node with its kernel prepared and memory of its own. A default-constructed tensor stands for an input left out.
class PreparedNode {
 public:
  // Throws Error when no kernel supports the node.
  PreparedNode(const std::string& op, std::vector<Tensor> inputs, const Attrs& attrs = {}, int num_outputs = 1,
               const std::string& domain = "");
  void run();
  const std::vector<Tensor>& outputs() const { return outputs_; }

 private:
  Model model_;
  std::vector<Tensor> inputs_, outputs_;
  Tensor workspace_;
  Prepared prepared_;
  std::vector<const void*> in_;
  std::vector<void*> out_;
};

// The node's outputs after one run.
std::vector<Tensor> run_node(const std::string& op, const std::vector<Tensor>& inputs, const Attrs& attrs = {},
                             int num_outputs = 1, const std::string& domain = "");

// How many nodes of an operator the graph of a model has.
int count_nodes(const Model& model, const std::string& op, const std::string& domain = "");

// Values drawn from [-1, 1], the same for each call with the same arguments.
Tensor random_tensor(DType dtype, Shape shape, unsigned seed = 1);

// The largest magnitude of the finite elements.
double largest(const Tensor& tensor);

// The largest difference of two tensors, relative to the largest element of `expected`; infinite when shapes differ.
double relative_error(const Tensor& actual, const Tensor& expected);

}  // namespace onnx_train
