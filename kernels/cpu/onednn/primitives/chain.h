// Prepared oneDNN calls: primitives that run one after the other on a node's inputs, outputs and workspace, typically
// "reorder into the layout that a convolution prefers, the convolution, reorder back".
//
// All primitives are created while a kernel is prepared; `run` sets pointers and executes. A prepared node owns its
// Chain, which runs on one thread at a time. Errors of oneDNN become Error. Only .cc files of kernels include this
// header, because oneDNN's own header is large.
#pragma once

#include <dnnl.hpp>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/place.h"

namespace onnx_train::cpu {

struct OneDnnOperand {
  OperandPlace place;
  dnnl::memory::desc layout;
};

class Chain {
 public:
  Chain();

  const dnnl::engine& engine() const { return engine_; }
  // The attributes of every primitive of a chain: scratch memory comes from the workspace.
  static dnnl::primitive_attr attributes();

  // Reserves a tensor in the workspace.
  OneDnnOperand scratch(const dnnl::memory::desc& layout);
  // Returns `from` in layout `to`: `from` itself, or a copy in the workspace, adding the reorder that makes it.
  OneDnnOperand in_layout(const OneDnnOperand& from, const dnnl::memory::desc& to);
  // Returns where to compute a result in layout `made` that belongs in `to`: `to` itself, or a tensor in the workspace,
  // which `reorder` then copies.
  OneDnnOperand staged(const OneDnnOperand& to, const dnnl::memory::desc& made);
  // Copies `from` to `to` unless they are the same.
  void reorder(const OneDnnOperand& from, const OneDnnOperand& to);
  // Appends a primitive; operands are given by argument (DNNL_ARG_SRC, ...).
  void add(const dnnl::primitive_desc_base& primitive, const std::vector<std::pair<int, OneDnnOperand>>& operands);

  void run(const Launch& launch);
  size_t workspace() const { return workspace_.bytes(); }

 private:
  struct Step {
    dnnl::primitive primitive;
    std::vector<dnnl::memory> memories;  // own what `arguments` points to
    std::vector<OperandPlace> places;
    std::vector<dnnl_exec_arg_t> arguments;
  };

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<Step> steps_;
  Workspace workspace_;
};

// Builds a chain and wraps it as a prepared kernel. Throws Error that names the node when oneDNN rejects a primitive.
Prepared prepare_chain(const NodeSpec& spec, const std::function<void(Chain&)>& build);

// oneDNN's element type; float32 or bfloat16 only.
dnnl::memory::data_type data_type(DType dtype);

dnnl::memory::desc row_major(const Shape& shape, DType dtype = DType::kFloat);
inline OneDnnOperand input(int i, const dnnl::memory::desc& layout) {
  return {{OperandPlace::kInput, static_cast<size_t>(i)}, layout};
}
inline OneDnnOperand output(int i, const dnnl::memory::desc& layout) {
  return {{OperandPlace::kOutput, static_cast<size_t>(i)}, layout};
}

}  // namespace onnx_train::cpu
