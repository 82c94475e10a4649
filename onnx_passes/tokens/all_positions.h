// What a model computes of positions alone, for earlier and new tokens together: a copy of the nodes that do so, in
// which the number of tokens is that of all, and the rows of the new ones (add_cache.h). Nodes are added before one
// that the caller names. The caller owns it and the graph; one thread.
#pragma once

#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/tokens/token_axes.h"

namespace onnx_train {

class AllPositions {
 public:
  struct Lengths {
    Value* past = nullptr;   // int64[1]: how many places earlier tokens have
    Value* fresh = nullptr;  // int64[1]: how many tokens are new
    Value* total = nullptr;  // both together
    // int64[..]: the positions of the new tokens, and of all keys; null: the last ones, and 0, 1, 2, ...
    Value* rows = nullptr;
    Value* keys = nullptr;
  };
  AllPositions(Graph* graph, const TokenFlow& flow, const Lengths& lengths)
      : graph_(*graph), flow_(flow), lengths_(lengths) {}

  // Where nodes are added from now on. What they read comes before it.
  void before(Node* node) { before_ = node; }

  // The value for all tokens; itself if it is fixed.
  Value* all(Value* value);
  // The rows of the new tokens along the axis `tokens`, for all keys along `keys`; -1: there is no such axis.
  Value* rows_and_keys(Value* value, int64_t tokens, int64_t keys);
  // Sizes of a result [..], computed for new tokens, with that of all at this place.
  Value* sizes_with_all(Value* sizes, int64_t place);
  // Sizes of a result of this rank, or of its last axes, with another one at an axis; -1: as they are.
  Value* sizes_with(Value* sizes, int64_t rank, int64_t axis, Value* size);

 private:
  Value* compute_all(Value* value);
  Value* shape_of_all(Node* node);
  Value* rows(Value* value, int64_t axis);
  Value* rows_of_inputs(Value* value, int64_t axis);
  Value* rows_of_gather(const Node& node, int64_t axis);
  Value* rows_of_expand(const Node& node, int64_t axis);
  Value* copy(const Node& node, const std::vector<Value*>& inputs, int output);
  Value* aligned_rows(Value* input, int64_t axis, int64_t rank);
  Value* remembered(const Value* value, int64_t tokens, int64_t keys, const std::function<Value*()>& make);

  Graph& graph_;
  const TokenFlow& flow_;
  const Lengths lengths_;
  Node* before_ = nullptr;
  std::map<std::tuple<const Value*, int64_t, int64_t>, Value*> made_;
};

}  // namespace onnx_train
