// A loss that is a model of its own, in the place of an expression: `--loss loss.onnx`. Its nodes become part of the
// entry points that compute the loss, named loss/<name>; the inference graph gets none of them. Functions on models
// that one caller owns, one thread; they throw Error that names the input or output, what was found, and what to do.
//
// An input of the loss whose name is that of a value of the forward model reads that value: mostly an output, but also
// an input or a weight. Every other input becomes an input of the training model, such as the targets. The one output
// of the loss is a float scalar, or of one element. The weights of the loss are constants.
//
// The loss's symbols for sizes become those of the values that its inputs read: where `logits` [N,C] reads [batch,10],
// `labels` [N] becomes [batch].
//
// A teacher joins the loss in the same way: `--teacher teacher.onnx`. All its inputs read inputs of the forward model
// of the same name; its outputs are values named teacher.<output>, for the expression to read. It is in inference form
// and its weights are constants, so that no gradient flows into it.
#pragma once

#include <functional>
#include <string>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct LossModel {
  std::string name;  // for messages and metadata: the file
  Model model;       // imported (passes.h) in the forward model's precision
};

// Whether the text of --loss is the name of a file. A name in quotes is an output instead.
bool is_loss_file(const std::string& loss);

// Makes the model's opset one that both have been written for, and adds the functions that the loss calls.
void join_opsets(Model* model, const LossModel& loss);

inline constexpr const char* kTeacherPrefix = "teacher.";

// Adds the nodes of the teacher at the end of the builder's graph, an algorithm, named teacher/<name>. `version` maps a
// value of the inference graph to the value that the entry point reads.
void add_teacher(Builder* b, const LossModel& teacher, const std::function<Value*(Value*)>& version);

// Adds the nodes of the loss at the end of the builder's graph, an algorithm, and returns the loss, a scalar. `version`
// maps a value of the inference graph to the value that the entry point reads.
Var add_loss_model(Builder* b, const LossModel& loss, const std::function<Value*(Value*)>& version);

}  // namespace onnx_train
