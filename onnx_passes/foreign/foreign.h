// Operators of other domains than ONNX's own, as standard ones: com.microsoft, which ONNX Runtime's optimizers write
// (its ContribOperators.md defines them), ai.onnx.ml, which converters of scikit-learn write, and QONNX's. One row per
// operator:
//
//     // C = gelu(A + B)
//     {"BiasGelu", [](Foreign& f) { return f.to(f.b().op("Gelu", {f.x(0) + f.x(1)})); }},
//
// Importing calls a row once the types of the node's inputs are known, so that nothing after it meets another domain.
// The table is built once and never changes; any thread may read it. One thread at a time may rewrite a graph.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "onnx_passes/inference/builder.h"

namespace onnx_train {

inline constexpr const char* kMl = "ai.onnx.ml";

using Results = std::vector<Var>;

// One node as its row sees it.
class Foreign {
 public:
  Foreign(Builder* builder, const Node* node) : builder_(builder), node_(node) {}

  const Node& node() const { return *node_; }
  Builder& b() const { return *builder_; }
  bool has(int i) const { return node_->input(i) != nullptr; }
  // Input i, which must be there. Throws Error that names the node.
  Var x(int i = 0) const;
  // Input i; Var() if it is absent.
  Var maybe(int i) const { return has(i) ? builder_->var(node_->input(i)) : Var(); }
  // Input i cast to float32 where it is an integer or a boolean.
  Var floats(int i = 0) const;
  // Whether something reads output i.
  bool wants(int i) const;
  // Input i, which the operator means as a table, such as one of angles: no weight that is trained.
  Var table(int i) const;
  // A size of input i that must be known, counted from the end for negative axes. Throws Error that names it.
  int64_t size(int i, int64_t axis) const;
  // The number of axes of input i, which must be known.
  int64_t rank(int i) const;
  // The node's attributes of these names, for another node.
  Attrs attributes(const std::vector<std::string>& names) const;
  // An initializer that can be trained, from an attribute of numbers.
  Var weight(const std::string& attribute, const Shape& shape) const;
  // The same of numbers that describe the data, such as their means, and are not trained.
  Var buffer(const std::string& attribute, const Shape& shape) const;

  // The row's answer: outputs 0, 1, ...; Var() for one that nothing reads. Several are a list, because the elements of
  // a list are evaluated in order, and each may add nodes.
  Results to(Var output) const { return {output}; }
  Results to(std::initializer_list<Var> outputs) const { return outputs; }

  // Throws Error: the node, the reason and a way out.
  [[noreturn]] void refuse(const std::string& reason) const;
  // The same if input i is given.
  void expect_absent(int i, const std::string& reason) const;

 private:
  // The numbers of the attribute, and the name of the initializer that they become.
  std::pair<std::string, Tensor> numbers(const std::string& attribute, const Shape& shape) const;

  Builder* builder_;
  const Node* node_;
};

struct ForeignRow {
  const char* op;
  std::function<Results(Foreign&)> rewrite;  // empty: refused
  const char* domain = "com.microsoft";
  const char* refusal = "";  // why there is no rewrite, and what to do
};

// All rows, in the order of the families' files.
const std::vector<const ForeignRow*>& foreign_rows();
// Null when there is none.
const ForeignRow* find_foreign(const Node& node);

// Puts standard operators in the place of a node that has a row; false if it has none. The types of its inputs are
// known. Throws Error for what a row refuses.
bool rewrite_foreign(Node* node);

// An operator of a domain that is refused with one sentence: the sentence; "" if there is none.
std::string refusal_of_foreign(const Node& node);

// The element-wise operator that the attribute `activation` names, of x; x itself without one. `numbers` are its alpha
// and beta, or the bounds of a Clip.
Var fused_activation(const Foreign& f, Var x, const std::vector<float>& numbers);
// x + y, or x if y is absent.
Var plus(Var x, Var y);

// The families, one file each. A new family adds its line here and in foreign_rows().
std::vector<ForeignRow> microsoft_rows();         // microsoft.cc: activations, products, convolutions
std::vector<ForeignRow> normalization_foreign();  // normalization.cc: normalizations of sums and embeddings
std::vector<ForeignRow> attention_foreign();      // attention.cc
std::vector<ForeignRow> quantized_foreign();      // quantized.cc: weights in a few bits
std::vector<ForeignRow> learning_foreign();       // learning.cc: ai.onnx.ml
std::vector<ForeignRow> qonnx_foreign();          // qonnx.cc: rounding as QONNX and Brevitas write it

}  // namespace onnx_train
