// Sequences of tensors whose members the graph tells: SequenceConstruct, SequenceEmpty, SequenceInsert, SequenceErase,
// SplitToSequence with known sizes, and SequenceMap of such a sequence. What reads such a sequence reads the tensors
// themselves: SequenceAt at a constant position, ConcatFromSequence (torch.stack, torch.cat), SequenceLength. For one
// graph, whose nodes are visited in order; one caller owns it.
#pragma once

#include <unordered_map>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

class Sequences {
 public:
  // Notes the members of the sequence that the node makes. If the node makes a tensor of a known sequence, replaces it
  // and returns true: the node no longer exists. Nodes that make sequences stay, and nothing reads them.
  bool unpack(Node* node);
  bool found() const { return !members_.empty(); }

 private:
  const std::vector<Value*>* members(const Value* sequence) const;
  bool note(Node* node);
  void map_members(Node* node, size_t count);

  std::unordered_map<const Value*, std::vector<Value*>> members_;
};

// A Loop that appends one tensor to a sequence in each step, as exporters write a list that a loop fills, stacks these
// tensors as its own result instead (collect_sequences.cc). Replaces such sequences of the Loops of the graph and of
// its subgraphs: those that are empty before the Loop, to which its body does nothing but one SequenceInsert at the
// end, and which ConcatFromSequence, SequenceAt and SequenceLength alone read after it. Returns whether there was one.
bool collect_sequences(Graph* graph);

}  // namespace onnx_train
