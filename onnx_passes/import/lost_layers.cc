#include "onnx_passes/import/lost_layers.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr const char* kInTrainingMode = "export in training mode (PyTorch: model.train(), TrainingMode.TRAINING)";
// PyTorch's dynamo exporter folds without regard to the mode.
constexpr const char* kUnfolded =
    "export without folding (PyTorch: optimize=False, or, with dynamo=False, training=TrainingMode.PRESERVE and "
    "do_constant_folding=False)";

// It drops a bias of zeros, such as an untrained layer has, where the operator can go without.
constexpr const char* kNotZeros = "export trained weights, or with optimize=False";

bool is_normalization(const Node& node) { return node.op().ends_with("Normalization"); }

// Whether networks with this operator mostly have dropout: transformers, recurrent and convolutional ones.
bool suggests_dropout(const Node& node) {
  return operator_of(node).precision == PrecisionRole::kRecurrent || node.is("Softmax") || node.is("Attention") ||
         node.is("LayerNormalization") || node.is("Conv");
}

// Whether a layer has a bias: its input 2, or what the next node adds.
bool has_bias(const Node& layer) {
  if (layer.num_inputs() > 2 && layer.input(2)) return true;
  const std::vector<Use>& uses = layer.output(0)->uses();
  return std::any_of(uses.begin(), uses.end(), [](const Use& use) {
    return use.node->is("Add") && use.node->num_inputs() == 2 && use.node->input(1 - use.index)->is_initializer();
  });
}

// Parts of adapters are products without a bias by nature, and no layers of the file.
bool is_linear(const Node& node, const std::unordered_set<std::string>& adapters) {
  if (!node.is("Gemm") && !node.is("MatMul")) return false;
  const Value* weight = node.input(1);
  if (weight->producer() && weight->producer()->is("Transpose")) weight = weight->producer()->input(0);
  return weight->is_initializer() && adapters.count(weight->name()) == 0;
}

struct LayerCount {
  int all = 0, with_bias = 0;
  void add(const Node& layer) {
    ++all;
    with_bias += has_bias(layer);
  }
};

std::string counted(int count, const char* what) { return concat(count, " ", what, count == 1 ? "" : "s"); }

// Folded or dropped: batch norm and biases of convolutions.
void add_convolutions(const LayerCount& convolutions, std::vector<Finding>* findings) {
  if (convolutions.with_bias > 0) {
    findings->push_back(
        {"batch norm",
         concat("the file has none; ", convolutions.with_bias, " of ", counted(convolutions.all, "convolution"),
                convolutions.all == 1 ? " has" : " have", " a bias"),
         concat("if the model has some, it is folded into them and is not trained: ", kUnfolded)});
  } else if (convolutions.all > 0) {
    findings->push_back({"batch norm, biases",
                         concat("the file has neither, in ", counted(convolutions.all, "convolution")),
                         concat("if the module has them, they are folded, or dropped as zeros: ", kUnfolded)});
  }
}

}  // namespace

std::vector<Finding> find_lost_layers(const Model& forward) {
  const Graph& graph = *forward.graph;
  const std::unordered_set<std::string> adapters = trained_with_adapters(forward);
  LayerCount convolutions, linear;
  bool has_dropout = false, has_normalization = false, may_have_dropout = false, suggests_biases = false;
  for (const Node* node = graph.first(); node; node = node->next()) {
    has_dropout = has_dropout || node->is("Dropout");
    may_have_dropout = may_have_dropout || suggests_dropout(*node);
    suggests_biases = suggests_biases || node->is("LayerNormalization");
    has_normalization = has_normalization || is_normalization(*node);
    if (node->is("Conv") || node->is("ConvTranspose")) convolutions.add(*node);
    if (!is_linear(*node, adapters)) continue;
    linear.add(*node);
    // Networks whose layers are made without biases, such as Llama, export them as MatMul and have RMSNorm.
    suggests_biases = suggests_biases || (node->is("Gemm") && !has_bias(*node));
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
  if (!has_normalization) add_convolutions(convolutions, &findings);
  if (suggests_biases && 2 * linear.with_bias < linear.all) {
    findings.push_back({"biases",
                        concat(linear.all - linear.with_bias, " of ", counted(linear.all, "linear layer"),
                               linear.all == 1 ? " has" : " have", " none"),
                        concat("if the module has them, they are dropped as zeros and not trained: ", kNotZeros)});
  }
  return findings;
}

}  // namespace onnx_train
