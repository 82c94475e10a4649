// Resolves the targets and weights of a loss expression whose predictions are resolved: names the targets that terms
// leave open, and checks the type and the shape of every target and weight that the model has. Part of
// loss_resolution.h; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/loss/loss_expression.h"
#include "onnx_passes/loss/loss_model.h"
#include "onnx_passes/loss/pairs.h"

namespace onnx_train {

// The values that an expression may name: those of the model, the outputs of a teacher, log-probabilities of pairs and,
// for metrics, the inputs that the loss has added. `teacher` (of pairs, too) and `loss` are the algorithms that hold
// them, or null.
class LossScope {
 public:
  LossScope(const Graph& graph, const Graph* teacher, const Graph* loss = nullptr)
      : graph_(graph), teacher_(teacher), loss_(loss) {}

  const Graph& graph() const { return graph_; }
  const Value* find(const std::string& name) const {
    const Value* value = graph_.find(name);
    if (!value && (is_of_teacher(name) || (teacher_ && is_of_pairs(name)))) return teacher_->find(name);
    const Value* added = value || !loss_ ? nullptr : loss_->find(name);
    return added && loss_->is_input(added) ? added : value;
  }
  bool is_of_teacher(const std::string& name) const { return teacher_ && name.starts_with(kTeacherPrefix); }

 private:
  const Graph& graph_;
  const Graph* teacher_;
  const Graph* loss_;
};

// The reader has the whole expression, for messages. Throws Error that names the column.
void resolve_targets(std::vector<LossTerm>* terms, const LossScope& scope, const ExpressionReader& reader);

}  // namespace onnx_train
