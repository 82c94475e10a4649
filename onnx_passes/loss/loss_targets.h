// Resolves the targets and weights of a loss expression whose predictions are resolved: names the targets that terms
// leave open, and checks the type and the shape of every target and weight that the model has. Part of
// loss_resolution.h; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/loss/loss_expression.h"
#include "onnx_passes/loss/loss_model.h"

namespace onnx_train {

// The values that an expression may name: those of the model, and the outputs of a teacher.
class LossScope {
 public:
  LossScope(const Graph& graph, const Graph* teacher) : graph_(graph), teacher_(teacher) {}

  const Graph& graph() const { return graph_; }
  const Value* find(const std::string& name) const {
    const Value* value = graph_.find(name);
    return !value && is_of_teacher(name) ? teacher_->find(name) : value;
  }
  bool is_of_teacher(const std::string& name) const { return teacher_ && name.starts_with(kTeacherPrefix); }

 private:
  const Graph& graph_;
  const Graph* teacher_;
};

// `text` is the whole expression, for messages. Throws Error that names the column.
void resolve_targets(std::vector<LossTerm>* terms, const LossScope& scope, const std::string& text);

}  // namespace onnx_train
