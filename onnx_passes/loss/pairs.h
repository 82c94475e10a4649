// Preferences among the answers of a language model: the loss `dpo` without log-probabilities of its own,
// `dpo(beta=0.1)`. The rows of a batch are then pairs: row 2i is the chosen answer of pair i, row 2i + 1 the rejected
// one, each with its prompt before it. The input `labels`, int64[rows, tokens], has for each token the one that follows
// if that is a part of the answer, else -100. The log-probability of an answer is the sum over its labels; for
// loss_type=ipo their mean, as in TRL.
//
// The reference is the model as it was: another forward pass in the same entry point, from which no gradient comes
// (adapt/reference_model.h). It reads the weights that do not train, and copies of those that do. Used by the loss
// pass, on its thread; throws Error.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "onnx_passes/loss/loss_expression.h"
#include "onnx_passes/loss/loss_model.h"

namespace onnx_train {

// Metadata of a training model whose batches have pairs as rows: the name of the labels.
inline constexpr const char* kPairs = "onnx_train.pairs";
// The same: what the reference is, for people.
inline constexpr const char* kReference = "onnx_train.reference";
inline constexpr int64_t kRowsOfPair = 2;

// The log-probabilities of pairs, [pairs], that the expression reads once they are added.
inline constexpr const char* kLogProbabilities[] = {"policy.chosen", "policy.rejected", "reference.chosen",
                                                    "reference.rejected"};
bool is_of_pairs(const std::string& name);

// Outputs of an entry point that are means of rewards have a role that begins so: rewards/chosen, rewards/rejected,
// rewards/margins.
inline constexpr const char* kRewards = "rewards/";

struct PairLoss {
  std::string logits, labels;
  bool averages = false;  // over the labels of an answer
  bool has_reference = true;
};

// The loss over pairs, if the expression is one. Its term then names kLogProbabilities. The reader has the whole
// expression, for messages.
std::optional<PairLoss> take_pair_loss(std::vector<LossTerm>* terms, const Graph& graph,
                                       const ExpressionReader& reader);

// Makes the model as it was, with one output: `logits`. `rounds`: as the step rounds it.
using MakeReference = std::function<Model(const Model&, const std::string& logits, bool rounds)>;

// The names of the weights that the reference has copies of: those that train, and running statistics.
std::unordered_set<std::string> copied_for_reference(const Model& model, const std::vector<std::string>& train,
                                                     const std::vector<std::string>& freeze);

// What the reference is, for people.
std::string describe_reference(const Model& reference, const std::unordered_set<std::string>& copied);

// Adds kLogProbabilities to the builder's graph, an algorithm. `version` maps a value of the inference graph to the
// value that the entry point reads; `reference` is null for a loss without.
void add_pairs(Builder* b, const PairLoss& pairs, const std::function<Value*(Value*)>& version, const Model* reference,
               const std::unordered_set<std::string>& copied);

}  // namespace onnx_train
