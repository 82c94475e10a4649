#include "runtime/data/texts/document_inputs.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/model/document_starts.h"
#include "onnx_passes/operators/operators.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/texts/packing.h"
#include "runtime/data/texts/position_table.h"

namespace onnx_train {

bool is_factor(const Model& model, const std::string& input) {
  const Value* mask = model.graph->find(input);
  if (!mask) return false;
  Marks<Value> seen;
  std::vector<const Value*> pending = {mask};
  while (!pending.empty()) {
    const Value* value = pending.back();
    pending.pop_back();
    if (!seen.insert(value)) continue;
    for (const Use& use : value->uses()) {
      const Node& node = *use.node;
      if ((node.is("Sub") && use.index == 1) || node.is("Mul") || node.is("Not")) return true;
      const bool keeps = is_view(node) || node.is("Cast") || node.is("Slice") || node.is("Expand");
      if (keeps && use.index == 0) pending.push_back(node.output());
    }
  }
  return false;
}

void note_packing(const std::string& path, const std::string& packing, const Model& model,
                  const std::vector<InputSpec>& inputs, DataArrays* data) {
  const InputSpec* tokens = token_inputs(inputs).tokens;
  const Rows* rows = tokens ? data->find(tokens->name) : nullptr;
  if (!rows || !rows->reader() || rows->reader()->token_axes().empty()) {
    data->notes.push_back(concat("--packing has no use: ", path, " holds no documents of tokens"));
    return;
  }
  if (!packs(packing)) return;
  const auto restarts = [](const InputSpec& spec) { return is_position(spec) || spec.name == kDocumentStarts; };
  if (std::ranges::any_of(inputs, restarts)) return;
  const PositionTable table = position_table(model);
  if (table.positions > 0)
    data->notes.push_back(concat("positions, which '", table.weight,
                                 "' has, go on over the documents of a row: the model takes none of the data"));
}

}  // namespace onnx_train
