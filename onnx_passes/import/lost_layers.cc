#include "onnx_passes/import/lost_layers.h"

#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr const char* kInTrainingMode = "export in training mode (PyTorch: model.train(), TrainingMode.TRAINING)";

bool is_normalization(const Node& node) { return node.op().ends_with("Normalization"); }

// Whether networks with this operator mostly have dropout: transformers, recurrent and convolutional ones.
bool suggests_dropout(const Node& node) {
  return operator_of(node).precision == PrecisionRole::kRecurrent || node.is("Softmax") || node.is("Attention") ||
         node.is("LayerNormalization") || node.is("Conv");
}

}  // namespace

std::vector<Finding> find_lost_layers(const Model& forward) {
  const Graph& graph = *forward.graph;
  int convolutions = 0, with_bias = 0;
  bool has_dropout = false, has_normalization = false, may_have_dropout = false;
  for (const Node* node = graph.first(); node; node = node->next()) {
    has_dropout = has_dropout || node->is("Dropout");
    may_have_dropout = may_have_dropout || suggests_dropout(*node);
    has_normalization = has_normalization || is_normalization(*node);
    if (!node->is("Conv") && !node->is("ConvTranspose")) continue;
    ++convolutions;
    if (node->num_inputs() > 2 && node->input(2)) ++with_bias;
  }
  std::vector<Finding> findings;
  if (may_have_dropout && !has_dropout) {
    findings.push_back(
        forward.metadata(kFromTraining).empty()
            ? Finding{"dropout", "the file has none",
                      concat("if the model has some, the export in evaluation mode has left it out: ", kInTrainingMode)}
            : Finding{"dropout", "the file is a training model, whose inference graph has none",
                      "if the forward model has some, build from the forward model"});
  }
  if (with_bias > 0 && !has_normalization) {
    findings.push_back({"batch norm",
                        concat("the file has none; ", with_bias, " of ", convolutions,
                               convolutions == 1 ? " convolution has" : " convolutions have", " a bias"),
                        concat("if the model has some, it is folded into them and is not trained: ", kInTrainingMode)});
  }
  return findings;
}

}  // namespace onnx_train
