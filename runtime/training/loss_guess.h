// A loss for a forward model and its data, where the user names none: the model's prediction (default_prediction of
// onnx_passes/loss/probabilities.h) is compared with what the data hold beside the model's inputs. What is guessed is
// printed. Pure functions; any thread.
#pragma once

#include <string>

#include "onnx_passes/ir/model.h"
#include "runtime/data/loading/source.h"

namespace onnx_train {

struct LossGuess {
  std::string loss;  // as --loss takes it: "cross_entropy"
  std::string why;   // "labels of train.npz is int64[1437], a class for each row of logits float[batch,10]"
};

// The rules, of which the first that fits wins. Sizes of 1 do not count, and open sizes fit any.
//
//   pairs of answers, in lines of .jsonl, with a tokenizer        dpo
//   integers, of the output's shape without the axis of classes   cross_entropy
//   one-hot rows, of the output's shape                           cross_entropy(probabilities=true)
//   zeros and ones, or masks of two values, of the output's shape bce_with_logits
//   numbers, of the output's shape                                mse
//   nothing beside the inputs, and one output of one element      that output
//
// An output that holds probabilities is compared by the scores that Softmax or Sigmoid makes them of, as the losses
// want it, or by its logarithms (onnx_passes/loss/probabilities.h). The target is the array `labels`, or the only array
// beside the model's inputs, whose name the loss then has. Throws Error of the code kData that says what was found and
// how to name a loss.
LossGuess guess_loss(const Model& forward, const std::string& path, const ReadOptions& options);
// The same for arrays; `what` names them in messages.
LossGuess guess_loss(const Model& forward, const TensorMap& arrays, const std::string& what);
// The same for texts that are read while a training goes on: the label of a token is the one that follows.
LossGuess guess_loss_of_stream(const Model& forward, const std::string& path);

}  // namespace onnx_train
