// What is true of an operator whatever runs it: one row per operator, families in files. A test fails for an operator
// that has a kernel and no row here. The table is made once and never changes; any thread may read it.
#pragma once

#include <string_view>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// How a row's terms without an element type of their own are checked.
enum class ElementTypes {
  kOfSchema,  // not at all: ONNX's schema or the kernel says what is allowed
  kOneFloat,  // one float type for all: functions of ours, and kernels that look at one input alone
  kNarrow,    // functions of ours on stored bfloat16: float or bfloat16, each for itself; kernels say which they take
};

struct Operator {
  const char* op;
  const char* shapes;  // the contract: shape_contract.h has its grammar
  const char* domain = "";
  ElementTypes types = ElementTypes::kOfSchema;
  // What the grammar cannot say. Throws Error; is called with types that may be partly unknown.
  void (*check)(const Node& node) = nullptr;
};

// Null when there is no row.
const Operator* find_operator(std::string_view domain, std::string_view op);

// Throws Error, which names the node, its input or output, what that is and what the operator's row wants, when what
// is known of the node breaks the row's contract. Sizes that are not known are passed over; so are operators without a
// row. Whatever reads a model calls this before it believes a node: importing, constant folding, and the plan before
// any kernel is asked (find_kernel).
void check_shapes(const Node& node);

// The families, one file each. A new family adds its line here and in operators.cc.
std::vector<Operator> elementwise_operators();
std::vector<Operator> product_operators();
std::vector<Operator> window_operators();  // convolutions and pools
std::vector<Operator> normalization_operators();
std::vector<Operator> reduction_operators();
std::vector<Operator> movement_operators();  // Reshape, Slice, Pad, Tile, generators
std::vector<Operator> indexing_operators();
std::vector<Operator> recurrent_operators();
std::vector<Operator> training_operators();  // losses, updates, random numbers
std::vector<Operator> attention_operators();

}  // namespace onnx_train
