#include "onnx_passes/model/document_starts.h"

#include <vector>

#include "onnx_passes/inference/fold_branch.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {
namespace {

// Nodes as separate_documents writes them, whose result for zeros is one of their inputs.
class DocumentJoiner {
 public:
  explicit DocumentJoiner(Graph* graph) : graph_(*graph) {}

  void run(Value* starts) {
    follow(starts);
    for (Node* node = graph_.first(); node; node = node->next()) {
      if (Value* same = without_documents(*node)) graph_.replace(node->output(), same);
    }
  }

 private:
  // Values that are computed of the starts and of the number of tokens alone, until they meet others.
  void follow(Value* starts) {
    of_starts_.insert(starts);
    for (Node* node = graph_.first(); node; node = node->next()) {
      const bool is_computed = node->is("Unsqueeze") || node->is("Equal") || node->is("Not") || node->is("Sub");
      for (int i = 0; is_computed && i < node->num_inputs(); ++i) {
        if (is_of_starts(node->input(i))) of_starts_.insert(node->output());
      }
    }
  }
  bool is_of_starts(const Value* value) const { return value && of_starts_.contains(value); }

  // Null for a node that reads no such value beside another one.
  Value* without_documents(const Node& node) const {
    if (node.is("Where") && is_of_starts(node.input(0))) return node.input(1);  // of one document
    if (node.is("And") || node.is("Or")) {
      if (is_of_starts(node.input(1))) return node.input(0);
      if (is_of_starts(node.input(0))) return node.input(1);
    }
    if (!node.is("Gather") || !is_of_starts(node.input(1))) return nullptr;
    const Node* flat = node.input(0)->producer();  // the positions, without the axes before them
    return flat && flat->is("Squeeze") ? flat->input(0) : node.input(0);
  }

  Graph& graph_;
  Marks<Value> of_starts_;
};

}  // namespace

void join_documents(Model* model) {
  Graph& graph = *model->graph;
  Value* const starts = graph.find(kDocumentStarts);
  if (!starts || !graph.is_input(starts)) return;
  DocumentJoiner(&graph).run(starts);
  remove_unread(&graph);
  // What passes have written in another way reads zeros.
  const std::vector<Use> uses = starts->uses();
  if (!uses.empty()) {
    const Tensor zero = Tensor::full(DType::kInt64, {1, 1}, 0);
    Value* const joined = graph.add_initializer(graph.unique_name("one_document"), zero);
    for (const Use& use : uses) use.node->set_input(use.index, joined);
  }
  graph.remove_input(starts);
}

}  // namespace onnx_train
