// Optimizer updates as their nodes describe them: one tensor, or many in one call (multi-tensor update, see
// kernels/lowering/updates/updates.h). Plain values; pure functions, any thread.
#pragma once

#include <vector>

#include "kernels/kernel.h"
#include "kernels/math/updates.h"

namespace onnx_train {

// A scalar that updates share: an input of the node, or a constant of the outlined body.
struct UpdateScalar {
  int input = -1;
  DType dtype = DType::kDouble;
  double constant = 0;
  bool operator==(const UpdateScalar&) const = default;
};

// The parameters that all tensors of a group share.
struct UpdateRule {
  math::UpdateParameters parameters;
  UpdateScalar step, rate, scale;
  int guard = -1;  // number of a bool input; if it is false, weights and slots do not change
  bool operator==(const UpdateRule&) const = default;
};

// One tensor: its rule and the numbers of its operands.
struct TensorUpdate {
  size_t rule;
  DType dtype;
  int64_t size;
  int inputs[4] = {-1, -1, -1, -1};  // w, g, slots
  int outputs[3] = {-1, -1, -1};     // next_w, next slots
};

struct MultiTensorUpdate {
  std::vector<UpdateRule> rules;
  std::vector<TensorUpdate> tensors;

  // New weights and slots may overwrite the old ones.
  std::vector<InPlace> in_place() const;
};

// The update operators; `describe` returns the updates of a node.
struct UpdateRow {
  const char* op;
  bool (*supports)(const NodeSpec&);
  MultiTensorUpdate (*describe)(const NodeSpec&);
};
const std::vector<UpdateRow>& update_rows();

// Whether the node is the update of one tensor by one of these operators.
bool is_update_of_one(const Node& node);

// AdamW8bit, with moments in blocks of bytes (math/dynamic_map.h). Inputs w, g, state1, absmax1, state2, absmax2 and
// the scalars; outputs next_w and the next of inputs 2 to 5.
UpdateRule quantized_update_rule(const NodeSpec& spec);
bool supports_quantized_update(const NodeSpec& spec);
inline std::vector<InPlace> quantized_update_in_place() { return {{0, 0}, {1, 2}, {2, 3}, {3, 4}, {4, 5}}; }

}  // namespace onnx_train
