// The losses that an expression may name, one row each. The grammar (loss_expression.h), its messages, the checks
// against the model (loss_resolution.h), the nodes (term_builder.h), the names in --help and the reference in
// docs/losses.md follow from the rows. Tables that never change, and functions of plain values; any thread.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/loss/loss_expression.h"

namespace onnx_train {

class TermBuilder;
struct LossResult;

// The shape of an argument, from that of the first prediction x.
enum class ArgumentShape {
  kOwn,         // the first prediction has its own
  kSame,        // x's, element by element
  kBroadcasts,  // one that broadcasts to x's
  kClasses,     // x's without the class axis (the option `axis`)
  kRows,        // x's without the last axis
  kSamples,     // [samples]
  kSequences,   // [samples, any length]
};

enum class ArgumentKind {
  kPrediction,  // a float value of the model
  kTarget,      // floats: a value of the model, or a new input
  kIndices,     // integers, likewise
};

struct LossArgument {
  const char* name;
  ArgumentKind kind;
  ArgumentShape shape;
  const char* floats_option = nullptr;  // an option that asks for floats of x's shape in the place of indices
  bool floats_by_type = false;          // ... as does a value of the model that holds floats
};

struct NumberRange {
  bool (*holds)(double);  // null: any number
  const char* text;       // "greater than 0"
};

inline constexpr NumberRange kAnyNumber{nullptr, "a number"};
inline constexpr NumberRange kAboveZero{[](double x) { return x > 0; }, "greater than 0"};
inline constexpr NumberRange kFromZero{[](double x) { return x >= 0; }, "0 or greater"};
inline constexpr NumberRange kZeroToOne{[](double x) { return x >= 0 && x <= 1; }, "from 0 to 1"};
inline constexpr NumberRange kInsideZeroToOne{[](double x) { return x > 0 && x < 1; }, "between 0 and 1"};
inline constexpr NumberRange kMinusOneToOne{[](double x) { return x >= -1 && x <= 1; }, "from -1 to 1"};
inline constexpr NumberRange kFromOne{[](double x) { return x >= 1; }, "1 or greater"};
inline constexpr NumberRange kOneOrTwo{[](double x) { return x == 1 || x == 2; }, "1 or 2"};
inline constexpr NumberRange kZeroOrOne{[](double x) { return x == 0 || x == 1; }, "0 or 1"};
inline constexpr NumberRange kTrueOrFalse{[](double x) { return x == 0 || x == 1; }, "true or false"};
inline constexpr NumberRange kWholeNumber{[](double x) { return x == std::floor(x) && std::abs(x) < 1e15; },
                                          "a whole number"};

enum class OptionKind {
  kNumber,          // in `range`; false is 0, true is 1
  kNumberOrValue,   // a number in `range`, or the name of a scalar
  kReduction,       // mean or sum
  kReductionBatch,  // ... or batchmean
  kClassWeight,     // a list of numbers, or the name of a vector
  kElementWeight,   // the name of a tensor that broadcasts to x; a new input has x's shape
  kChannelWeight,   // the same, or a list of numbers along x's last axis; a new input has that axis
  kSampleWeight,    // the name of a vector
  kChoice,          // one of `words`
};

struct LossOption {
  const char* name;
  OptionKind kind;
  double otherwise = 0;  // the number that it is, unless it is given
  NumberRange range = kAnyNumber;
  const char* text = "";                // what it does, for documentation
  std::vector<std::string> words = {};  // of a choice; the first one is the default
};

// What the first prediction is, for metrics and for classes and probabilities.
enum class Prediction {
  kOther,
  kClasses,   // scores along the class axis, of which softmax makes probabilities
  kYesNo,     // a score in each element, of which the sigmoid makes a probability
  kEstimate,  // of the target itself
};

inline constexpr int64_t kAnyRank = 1000;

struct LossRow {
  const char* name;
  std::vector<LossArgument> arguments;  // predictions first
  std::vector<LossOption> options;
  LossResult (*build)(TermBuilder&);
  // For documentation: the loss of a position; what the mean is over; where the formula is from.
  const char* formula;
  const char* over;
  const char* source;
  int64_t least_rank = 0, most_rank = kAnyRank;  // of the first prediction
  Prediction prediction = Prediction::kOther;
};

// Null if there is none of that name.
const LossRow* find_loss(const std::string& name);
const std::vector<LossRow>& loss_rows();
const LossOption* find_option(const LossRow& row, const std::string& name);
inline bool is_over_classes(const LossRow& row) { return find_option(row, "axis") != nullptr; }
size_t num_predictions(const LossRow& row);
// Whether the loss makes probabilities of its first prediction itself, by a softmax or a sigmoid: rows call it logits.
bool takes_logits(const LossRow& row);
// What the prediction of a term is: that of its row, unless an option says that each class stands for itself.
Prediction prediction_of(const LossTerm& term);

// "a prediction and a target", or the names of the arguments: "anchor, positive and negative".
std::string arguments_text(const LossRow& row);
// The part of docs/losses.md that follows from the rows, as Markdown.
std::string loss_reference();
// The same of one row: its call, the text of its definition, its options.
std::string reference_of(const LossRow& row, const std::string& definition);

// The axis of the samples of the first prediction.
int64_t batch_axis(const LossTerm& term);
// Whether argument `i` of the term holds floats of x's shape in the place of indices. `value` is the value of the
// model that it names, or null.
bool holds_floats(const LossTerm& term, size_t i, const Value* value);
// Whether argument `i` of the term holds probabilities, from 0 to 1.
bool holds_probabilities(const LossTerm& term, size_t i, const Value* value);
// The axes of x, of rank `rank`, that argument `i` has; -1 stands for an axis of any size.
std::vector<int64_t> argument_axes(const LossTerm& term, size_t i, int64_t rank, bool floats);

// The families, one file each.
std::vector<LossRow> class_losses();         // class_losses.cc
std::vector<LossRow> element_losses();       // element_losses.cc
std::vector<LossRow> distribution_losses();  // distribution_losses.cc
std::vector<LossRow> margin_losses();        // margin_losses.cc
std::vector<LossRow> contrastive_losses();   // contrastive_losses.cc
std::vector<LossRow> sequence_losses();      // ctc.cc

}  // namespace onnx_train
