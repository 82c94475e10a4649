// Properties of operators that hold for every device: one row per operator, one file per family. A test fails if an
// operator has a kernel but no row. The table is built once and never changes; any thread may read it.
#pragma once

#include <string_view>
#include <vector>

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/operators/epilogue.h"

namespace onnx_train {

// How terms of a row without an element type of their own are checked.
enum class ElementTypes {
  kOfSchema,  // not at all: ONNX's schema or the kernel decides
  kOneFloat,  // one float type for all except narrow operands: our functions, and kernels that check one input only
};

// What an operator does with its elements.
enum class OperatorKind {
  kOther,
  kElementwise,    // an output element depends only on the input elements at its (broadcast) position
  kProduct,        // output 0 holds sums of products of inputs 0 and 1
  kRecurrence,     // computed step by step, with products of its inputs in each step
  kReduction,      // sums, means, extrema over axes
  kView,           // the elements of input 0 in their order, with another shape
  kRearrangement,  // every element of the inputs at other positions, or at several
  kExtraction,     // elements of input 0; other inputs or attributes say which
};

// What mixed precision does with a node (onnx_passes/precision/mixed_precision.h).
enum class PrecisionRole {
  kFloat32,     // computes in float32: softmax's scores, exp, log, reductions, losses
  kProduct,     // rounded operands, float32 sums; bf16: the result is rounded
  kActivation,  // bf16: the result is rounded if it depends on a product or a lookup; computed in float32
  kLookup,      // bf16: results of a lookup in a table of weights are rounded
  kMovement,    // moves values unchanged
  kRecurrent,   // becomes its training form, which rounds h and the gates' gradients; bf16: the gates' values, too
};

// How a node on images [batch, channels, sizes..] becomes one on [batch, sizes.., channels], by lowering. Element-wise
// operators and reductions have no role: their kind says it.
enum class ImageRole {
  kNone,         // it does not: it needs channels first
  kConvolution,  // the same operator with channels_last = 1
  kTransposed,   // the input gradient of a convolution with channels_last = 1
  kPool,         // the same operator with channels_last = 1
  kGlobalPool,   // a reduction over the sizes
  kPerChannel,   // the same operator on images as [elements, channels]
  kGroups,       // a GroupNormalization with channels_last = 1
  kAxis,         // the same operator with another attribute `axis`
  kListedAxes,   // the same operator with other axes in input 3
  kExpand,       // the same operator with another shape in input 1
  kResize,       // the same operator with another attribute `axes`
};

// What a node reads and writes of its inputs and outputs.
enum class Traffic {
  kAll,
  kNone,     // nothing: the result follows from the shape of input 0
  kWritten,  // of input 0, at most as many elements as it writes
  kGiven,    // of each output and what it was, as many elements as input 1 has
};

// A range of a node's inputs, [begin, end).
struct InputRange {
  static constexpr int kAll = 1 << 30;
  int begin = 0, end = 0;
  bool holds(int index) const { return begin <= index && index < end; }
};

// An operand that leaves the other one as it is: the 0 of x + 0, the 1 of x · 1.
struct NeutralOperand {
  double number = 0;
  InputRange at = {};  // the inputs that may be this number; none by default
};

struct Operator {
  const char* op;
  const char* shapes;  // the contract: shape_contract.h has its grammar
  const char* domain = "";
  ElementTypes types = ElementTypes::kOfSchema;
  // Checks what the grammar cannot express. Throws Error; types may be partly unknown.
  void (*check)(const Node& node) = nullptr;
  OperatorKind kind = OperatorKind::kOther;
  // Inputs and outputs that lowering may store in 16 bits while the node computes in float32. Lowering then replaces
  // the node by a function of the same name in our domain, which has the same contract or a row of its own.
  std::vector<int> narrow_inputs = {}, narrow_outputs = {};
  PrecisionRole precision = PrecisionRole::kFloat32;
  // Inputs in which models keep weights: a float constant there is one (onnx_passes/model/weight_roles.h).
  std::vector<int> weights = {};
  // Inputs that the node selects from: each element of its outputs is an element of these inputs or zero, up to the
  // sign. Not MaxPool's: a window that covers only padding gives the lowest float32.
  InputRange selects = {};
  // Inputs that say how to compute and hold no weights: bounds, ratios, exponents (onnx_passes/model/constants.h).
  InputRange settings = {};
  NeutralOperand neutral = {};  // of two operands; an element-wise operator's
  // Inputs whose contents, and not their shapes alone, decide the shapes of the outputs. A plan is cut before a node
  // that computes with data in them (kernels/lowering/canonical/segments.cc).
  std::vector<int> sized_by = {};
  // Of a collective: the optional input that takes the result of the collective before it. -1: this is no collective.
  int after = -1;
  // Computing an element again costs less than reading it from memory.
  bool cheap = false;
  Traffic traffic = Traffic::kAll;
  // The multiply-adds of a product (multiply_adds.h); null for other operators, whose body, if any, says it.
  double (*multiply_adds)(const Node& node) = nullptr;
  ImageRole image_role = ImageRole::kNone;
  std::vector<int> image_inputs = {}, image_outputs = {};
  // Named sizes of the contract, a letter each: the node computes for each index along those of `each` by itself, and
  // adds up along those of `summed`. Ranks may share out these axes (onnx_passes/distribution/axis_rules.cc).
  const char *each = "", *summed = "";
  // The steps that the epilogue of a node may have. The contract has the names of what they read and write.
  Epilogue steps = {};

  // The row with one more fact.
  Operator counting(double (*multiply_adds)(const Node& node)) const;
  Operator moving(Traffic what) const;
  Operator on_images(ImageRole role, std::vector<int> inputs = {0}, std::vector<int> outputs = {0}) const;
  Operator narrow(std::vector<int> inputs, std::vector<int> outputs) const;
  Operator in_precision(PrecisionRole role) const;
  Operator weights_at(std::vector<int> inputs) const;
  Operator of_kind(OperatorKind of) const;
  Operator selecting(InputRange from) const;
  Operator with_settings(InputRange at) const;
  Operator sized_by_inputs(std::vector<int> inputs) const;
  Operator meeting_after(int input) const;
  Operator with_epilogue(Epilogue steps) const;
  Operator shared_along(const char* each, const char* summed = "") const;
};

// Null if there is no row.
const Operator* find_operator(std::string_view domain, std::string_view op);

const std::vector<const Operator*>& operator_rows();

// The place in the node of the input or output that has this name in the contract of the node's row; -1 if the node
// lacks it, or there is no such name.
int input_at(const Node& node, std::string_view name);
int output_at(const Node& node, std::string_view name);
// The place that an operator has for an input of this name; -1 if there is no such name.
int place_of_input(std::string_view domain, std::string_view op, std::string_view name);

// The row of the node's operator; one that says nothing if there is none.
const Operator& operator_of(const Node& node);
bool is_elementwise(const Node& node);
bool is_reduction(const Node& node);  // over axes: ReduceSum, ReduceMean, ReduceMax, ...
// Whether the output is the memory of the first input with another shape: Reshape, Squeeze, Unsqueeze, Flatten,
// Identity.
bool is_view(const Node& node);
// Whether the outputs hold elements of input 0 at other positions, or as another type.
bool moves_elements(const Node& node);
// Whether the node reads the shape of its input and not the elements: Shape, Size.
bool reads_shape_only(const Node& node);

// Throws Error if what is known of the node violates the contract in its operator's row; the message names the node,
// the input or output, the shape found and the shape required. Ignores unknown sizes and operators without a row.
// Called by every reader of a model before it relies on a node: importing, constant folding, and the plan before it
// asks a kernel (find_kernel).
void check_shapes(const Node& node);

}  // namespace onnx_train
