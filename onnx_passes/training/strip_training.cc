#include "onnx_passes/training/strip_training.h"

#include <algorithm>

#include "onnx_passes/functions/declaration.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/model/document_starts.h"
#include "onnx_passes/model/flatten.h"
#include "onnx_passes/model/table_metadata.h"
#include "onnx_passes/quantization/write_qdq.h"

namespace onnx_train {

Model strip_training(const Model& model) {
  Model inference = flatten(model, Entry::kPredict);
  join_documents(&inference);
  write_qdq(&inference);
  for (Node* node : inference.graph->nodes()) {
    if (node->domain() == kDomain && !keeps_its_calls(kDomain, node->op())) inline_function(node);
  }
  inference = without_unused(std::move(inference));
  auto* properties = inference.shell().mutable_metadata_props();
  for (int i = properties->size() - 1; i >= 0; --i) {
    const std::string& key = properties->Get(i).key();
    const bool constant = key.starts_with(kConstantRecord) && inference.graph->find(key.substr(kConstantRecord.size()));
    const bool of_data = key == kPreprocess || key == kScoresOf || std::ranges::count(kTableMetadata, key) > 0;
    const bool kept = of_data || constant || is_adapter_record(key, *inference.graph);
    if (key.starts_with("onnx_train.") && !kept) properties->DeleteSubrange(i, 1);
  }
  return inference;
}

}  // namespace onnx_train
