// Recomputes values in groups instead of reading them. This pays if each operation is cheaper than memory, and the
// operands are values that the group reads anyway, much smaller values, or one bfloat16 value, which halves the bytes
// to read and to keep.
#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "kernels/lowering/fusion/fusion_groups.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

constexpr int64_t kSmallest = 4096;   // elements for which recomputation pays
constexpr int64_t kMuchSmaller = 16;  // a value smaller by this factor is free to read

// Rematerialization in one group.
class Again {
 public:
  Again(FusionGroups* groups, int g) : groups_(*groups), g_(g), group_(groups_[g]), elements_(group_.space.size) {}

  bool run() {
    if (group_.nodes.size() < 2 || elements_ < kSmallest) return false;
    bool changed = false;
    std::vector<Value*> inputs = groups_.full_inputs(g_);
    for (Value* source : add_ways_from_narrow(&inputs)) known_[source] = source;
    for (Value* input : inputs) {
      if (!is_cheap(input)) known_[input] = input;
    }
    for (Value* input : inputs) {
      if (known_.count(input)) continue;
      const Node& node = *input->producer();
      const bool there = std::all_of(node.inputs().begin(), node.inputs().end(), [&](const Value* operand) {
        return !operand || known_.count(operand) || num_elements_of(*operand) * kMuchSmaller <= elements_;
      });
      const bool again = there && group_.nodes.size() < FusionGroups::kMaxNodes;
      known_[input] = again ? twin_of(node) : input;
      changed |= again;
    }
    return changed;
  }

 private:
  // Adds to `inputs`, in order, the values between bfloat16 values and an input; returns the bfloat16 values.
  std::vector<Value*> add_ways_from_narrow(std::vector<Value*>* inputs) const {
    std::vector<Value*> sources;
    std::unordered_set<Value*> all(inputs->begin(), inputs->end());
    for (Value* input : *inputs) {
      Value* source = nullptr;
      std::unordered_set<Value*> between;
      const bool found = size_of(input->dtype()) > size_of(DType::kBFloat16) && find_way(input, &source, &between);
      if (!found || !source || group_.nodes.size() + between.size() > FusionGroups::kMaxNodes) continue;
      sources.push_back(source);
      all.insert(between.begin(), between.end());
    }
    inputs->assign(all.begin(), all.end());
    std::sort(inputs->begin(), inputs->end(),
              [&](const Value* a, const Value* b) { return groups_.place(a) < groups_.place(b); });
    return sources;
  }

  // Finds the only bfloat16 value from which cheap operations compute `value`, and the values in between, including
  // `value`. Returns false if `value` depends on other values, is too far away, or another group recomputes an operand.
  bool find_way(Value* value, Value** source, std::unordered_set<Value*>* between) const {
    constexpr size_t kFar = 16;
    if (is_16_bit_float(value->dtype()) && (!value->producer() || groups_.is_numbered(value->producer()))) {
      if (*source && *source != value) return false;
      *source = value;
      return true;
    }
    if (between->count(value)) return true;
    if (!is_cheap(value) || between->size() == kFar || !groups_.is_numbered(value->producer())) return false;
    between->insert(value);
    const std::vector<Value*> operands = value->producer()->inputs();
    return std::all_of(operands.begin(), operands.end(), [&](Value* operand) {
      return !operand || num_elements_of(*operand) * kMuchSmaller <= num_elements_of(*value) ||
             (num_elements_of(*operand) == num_elements_of(*value) && find_way(operand, source, between));
    });
  }

  // Whether computing the value is cheaper than reading it from memory.
  bool is_cheap(const Value* value) const {
    const Node* node = value->producer();
    return node && node->domain().empty() && operator_of(*node).cheap && groups_.can_fuse(*node);
  }

  // Copies the node into the group and redirects the group's readers to the copy. Copies precede the whole group,
  // because until regrouping a reader may precede the node.
  Value* twin_of(const Node& node) {
    Value* old = node.output();
    std::vector<Value*> operands = node.inputs();
    for (Value*& operand : operands) {
      const auto found = known_.find(operand);
      if (found != known_.end()) operand = found->second;
    }
    if (!first_) {
      const auto earlier = [&](const Node* a, const Node* b) { return groups_.position(a) < groups_.position(b); };
      first_ = *std::min_element(group_.nodes.begin(), group_.nodes.end(), earlier);
    }
    Graph& graph = groups_.graph();
    Node* twin = graph.add_node(node, operands, {graph.unique_name(old->name() + "/again")}, first_);
    twin->output()->set_type(old->type());
    const std::vector<Use> uses = old->uses();
    for (const Use& use : uses) {
      if (groups_.of(use.node) == g_) use.node->set_input(use.index, twin->output());
    }
    groups_.add(twin, g_);
    return twin->output();
  }

  FusionGroups& groups_;
  int g_;
  Group& group_;
  int64_t elements_;
  std::unordered_map<const Value*, Value*> known_;  // replacement of an input in the group
  Node* first_ = nullptr;                           // first node of the group before copies
};

void remove_unread(FusionGroups* groups) {
  Graph& graph = groups->graph();
  Node* previous = nullptr;
  for (Node* node = graph.last(); node; node = previous) {
    previous = node->previous();
    const auto unread = [&](const Value* value) {
      return !value || (value->uses().empty() && !groups->is_graph_output(value));
    };
    if (!std::all_of(node->outputs().begin(), node->outputs().end(), unread)) continue;
    const int g = groups->of(node);
    if (g >= 0) std::erase((*groups)[g].nodes, node);
    groups->release(node);
    graph.remove(node);
  }
}

}  // namespace

bool rematerialize_in_region(FusionGroups* groups) {
  bool changed = false;
  for (int g = 0; g < groups->count(); ++g) changed |= Again(groups, g).run();
  if (changed) remove_unread(groups);
  return changed;
}

}  // namespace onnx_train
