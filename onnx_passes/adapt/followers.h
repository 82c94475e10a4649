// What is computed from a layer that now has another number of outputs: types are inferred anew, and numbers in the
// model that count the outputs are changed, or refused. One caller owns the graph; throws Error that names the node.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {

class Followers {
 public:
  // `output` is the model's, for messages; its layer had `before` outputs and has `after`.
  Followers(Graph* graph, const std::string& output, int64_t before, int64_t after)
      : graph_(*graph), output_(output), before_(before), after_(after) {}

  // Infers the types of all values that depend on `changed` anew, but for those of `others`: nodes that read what has
  // changed and whose results are as they were.
  void follow(const std::vector<Value*>& changed, const std::vector<Node*>& others = {});

  // The nodes whose numbers have been changed, for people; "" for none.
  const std::string& mended() const { return mended_; }

 private:
  std::string way_out() const;
  void expect_fit(Node* node, const Marks<Value>& dependent);
  void mend_reshape(Node* node);

  Graph& graph_;
  const std::string output_;
  const int64_t before_, after_;
  ValueTable<TensorType> old_;
  std::string mended_;
};

}  // namespace onnx_train
