// The optimizers, one row each: names, hyper-parameters, state and the function that updates one weight. The grammar of
// --optimizer and --group, its messages, help, and the pass that adds updates follow from the rows. Constant data; any
// thread.
//
// A function is called as Op (w, g, slots.., step, learning_rate, grad_scale) -> next_w, next slots.. A slot that a
// weight does not have is an absent input and no output. Functions: onnx_passes/functions/*updates.cc.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/inference/builder.h"

namespace onnx_train {

struct OptimizerSpec;

// Valid values of a hyper-parameter.
enum class ValidNumbers {
  kNonNegative,  // 0 or more
  kFraction,     // in [0, 1)
  kNonPositive,  // 0 or less
  kSmallWhole,   // a whole number from 0 to 99
  kFlag,         // true or false
  kChoice,       // one of the row's choices
};

struct Hyperparameter {
  const char* key;   // as PyTorch's constructor calls it
  double otherwise;  // the default
  ValidNumbers valid = ValidNumbers::kNonNegative;
  const char* attribute = nullptr;  // of the function: a float64 tensor, or an integer for a flag, count or choice
  const char* tuple = nullptr;      // the name of what it forms with its neighbours: betas=(0.9, 0.999)
  std::vector<const char*> choices = {};  // of kChoice; the value is the place in the list
};

enum class SlotShape {
  kWeight,       // as the weight
  kScalar,       // one number
  kRows,         // the weight's, with 1 as the last size
  kColumns,      // the weight's, with 1 as the last but one
  kBlocks,       // uint8: the weight's elements in rows of kQuantizedBlock (dynamic_map.h), the last one filled up
  kBlockMaxima,  // a number for each of these rows
  kAverage,      // no state of its own: the weight that inference reads, where training reads another (raw_weights.h)
};

struct OptimizerSlot {
  const char* name;  // PyTorch's: the key of its state
  SlotShape shape = SlotShape::kWeight;
  double initial = 0;
  const char* initial_key = nullptr;  // the hyper-parameter that is the initial value instead
  // Whether a weight has it; null: each has.
  bool (*exists)(const OptimizerSpec& spec, const Value& weight) = nullptr;
  bool of_variant = false;  // an input of the variant's function alone
};

struct OptimizerRow {
  const char* name;    // in --optimizer
  const char* op;      // the function
  const char* source;  // of the formula, for docs and help
  std::vector<Hyperparameter> hyperparameters;
  std::vector<OptimizerSlot> slots;
  // A flag for which another function is called, with the slots that are `of_variant`.
  struct Variant {
    const char* key;
    const char* op;
  } variant = {nullptr, nullptr};
  // Why the values do not fit together; "" if they do.
  std::string (*conflict)(const OptimizerSpec& spec) = nullptr;
  // The optimizer of weights that `takes` refuses. Its hyper-parameter `key` is ours of the name <rest>_<key>, or else
  // of the same name.
  const char* rest = nullptr;
  bool (*takes)(const OptimizerSpec& spec, const Value& weight) = nullptr;
  // Further attributes of the function that depend on the weight.
  Attrs (*weight_attributes)(const OptimizerSpec& spec, const Value& weight) = nullptr;
};

const std::vector<OptimizerRow>& optimizer_rows();

// Null if there is no such row.
const OptimizerRow* find_optimizer(const std::string& name);

}  // namespace onnx_train
