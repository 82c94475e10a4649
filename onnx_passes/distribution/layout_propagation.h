// From the cuts of states to how ranks have every value of an entry point, forward through the graph, its backward pass
// included. A state that the ranks have whole and whose parts alone are read, or written, is cut, too: so the cut of
// one weight cuts those that it meets, its bias, their sums of gradients and the states of the optimizer. The caller
// owns the objects and the graph; one thread. Functions throw Error for graphs that are not valid.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/distribution/layout_rules.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {

// The cuts of a model's states.
class CutStates {
 public:
  explicit CutStates(const Model& model);  // all whole
  explicit CutStates(StateCuts cuts) : cuts_(std::move(cuts)) {}
  const StateCuts& cuts() const { return cuts_; }
  const Cut* find(const std::string& state) const;
  bool is_state(const std::string& name) const { return states_.contains(name); }
  // Cuts a state, and with a weight all its states of the weight's shape. False if it has other cuts, or ranks would
  // have no equal shares, or it is no state.
  bool add(const std::string& state, const Cut& cut, int64_t parts);

 private:
  struct State {
    std::string weight;  // that it is or belongs to
    Shape shape;
  };
  std::map<std::string, State> states_;
  std::map<std::string, std::vector<std::string>> of_weight_;
  StateCuts cuts_;
};

class LayoutPropagation {
 public:
  // `states` are cut further where `may_cut`. Functions of the graph whose inputs are parts and for which there is no
  // rule are replaced by their bodies.
  LayoutPropagation(Graph* graph, CutStates* states, int64_t parts, bool may_cut)
      : graph_(*graph), states_(*states), parts_(parts), may_cut_(may_cut) {}

  // False where ranks would have to send each other parts: `reason` says where. It has cut further states then, too.
  bool run();
  const std::string& reason() const { return reason_; }
  bool has_cut() const { return has_cut_; }  // a state that was whole

  Layout layout(const Value* v) const {
    const Layout* found = v ? layouts_.find(v) : nullptr;
    return found ? *found : Layout();
  }
  // Null where all inputs and outputs are whole.
  const NodeLayouts* layouts(const Node& node) const { return nodes_.find(&node); }
  // Whether the value is added up over ranks where it is computed.
  bool is_summed(const Value* v) const { return summed_.contains(v); }
  // How ranks have an output of the graph in the end.
  Layout wanted(const Value& output) const;
  // The elements of all sums over ranks, and of outputs of which each rank gives the others its part, with sizes of 1
  // where they are not known.
  double exchanged_elements() const;

 private:
  void pass();
  void visit(Node* node, Node** next);
  void want(Value* v, const Layout& wanted, const std::string& reader);
  bool cut_source(const Value* v, Cut cut);
  void fail_at(const std::string& reader, const Value& v);

  Graph& graph_;
  CutStates& states_;
  int64_t parts_;
  bool may_cut_;
  ValueTable<Layout> layouts_;
  NodeTable<NodeLayouts> nodes_;
  Marks<Value> summed_;
  std::vector<const Value*> exchanged_;
  std::string reason_;
  bool changed_ = false, has_cut_ = false;
};

}  // namespace onnx_train
