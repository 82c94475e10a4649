// Which nodes go together. Each node gets a level: that of its deepest input, and one more where the input comes from a
// group that the node cannot join. So levels never fall along a path, and rise wherever a path leaves a group: no path
// comes back to a group that it has left, whichever nodes of one level are taken together. One walk finds all groups.
//
// A group whose results go to one other group only may be computed there. What a group reads but could as well compute,
// from numbers that it reads anyway, by an operation that costs less than memory does, it computes again: so a backward
// pass keeps a network's activations, and not what was computed on the way from one to the next.
//
// Then the nodes of each group are brought together, the order of everything else being kept, and outlined.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "kernels/lowering/bring_together.h"
#include "kernels/lowering/island.h"
#include "kernels/lowering/lowering.h"
#include "kernels/lowering/outline.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {
namespace {

constexpr size_t kMaxNodes = 128;     // of a group: more would not keep their values in the cache
constexpr int64_t kSmallest = 4096;   // elements that are worth computing twice
constexpr int64_t kMuchSmaller = 16;  // a value so many times smaller costs nothing to read

struct Group {
  Space space;
  int level = 0;
  std::vector<Node*> nodes;
};

class Fuser {
 public:
  Fuser(Graph& graph, const std::function<bool(const Node&)>& can_fuse)
      : graph_(graph), can_fuse_(can_fuse), outputs_(graph.outputs()) {}

  bool run() {
    for (Node* node = graph_.first(); node; node = node->next()) visit(node);
    number_nodes();
    for (Node* node = graph_.first(); node; node = node->next()) hand_over(node);
    for (size_t g = groups_.size(); g-- > 0;) sink(static_cast<int>(g));
    bool changed = false;
    for (size_t g = 0; g < groups_.size(); ++g) changed |= recompute(static_cast<int>(g));
    if (changed) remove_unread();
    number_nodes();
    for (size_t g = 0; g < groups_.size(); ++g) {
      sort(&groups_[g].nodes);
      trim_views(static_cast<int>(g));
      trim_widenings(static_cast<int>(g));
      if (!is_worth_it(static_cast<int>(g))) dissolve(static_cast<int>(g));
    }
    const auto used = [](const Group& group) { return !group.nodes.empty(); };
    if (!changed && std::none_of(groups_.begin(), groups_.end(), used)) return false;
    bring_together(&graph_, groups_of_nodes());
    for (const Group& group : groups_) {
      if (used(group)) outline(group.nodes, "Fused");
    }
    return true;
  }

 private:
  // ---- Groups

  int group_of(const Node* node) const {
    const int* found = group_of_.find(node);
    return found ? *found : -1;
  }

  void visit(Node* node) {
    int outside = 0;  // the deepest of the inputs that come from no group
    std::vector<int> groups;
    for_each_input(*node, [&](const Value* input) {
      const Node* producer = input->producer();
      const int g = producer ? group_of(producer) : -1;
      if (g < 0) {
        const int* level = producer ? level_of_.find(producer) : nullptr;
        if (level) outside = std::max(outside, *level);
      } else if (std::find(groups.begin(), groups.end(), g) == groups.end()) {
        groups.push_back(g);
      }
    });
    int deepest = outside;
    for (int g : groups) deepest = std::max(deepest, group(g).level);
    std::vector<int> joined;
    for (int g : groups) {
      if (group(g).level == deepest) joined.push_back(g);
    }
    if (!node->subgraphs().empty() || !can_fuse_(*node)) {
      level_of_[node] = deepest + (joined.empty() ? 0 : 1);
    } else if (joined.empty() || !join(node, joined)) {
      start_group(node, deepest + (joined.empty() ? 0 : 1));
    }
  }

  bool join(Node* node, const std::vector<int>& joined) {
    Space space = group(joined[0]).space;
    size_t nodes = 1;
    for (int g : joined) {
      const auto both = merge(space, group(g).space);
      if (!both) return false;
      space = *both;
      nodes += group(g).nodes.size();
    }
    const auto residence_of = [&](const Value* value) {
      const int g = value->producer() ? group_of(value->producer()) : -1;
      return std::find(joined.begin(), joined.end(), g) == joined.end() ? std::nullopt
                                                                        : std::optional(residence_.at(value));
    };
    const auto residence = nodes > kMaxNodes ? std::nullopt : fit(*node, residence_of, &space);
    if (!residence) return false;
    const int into = unite(joined);
    group(into).space = space;
    add(node, into, *residence);
    return true;
  }

  // The smaller ones into the largest.
  int unite(const std::vector<int>& joined) {
    const int into = *std::max_element(joined.begin(), joined.end(),
                                       [&](int a, int b) { return group(a).nodes.size() < group(b).nodes.size(); });
    for (int g : joined) {
      if (g == into) continue;
      for (Node* node : group(g).nodes) group_of_[node] = into;
      group(into).nodes.insert(group(into).nodes.end(), group(g).nodes.begin(), group(g).nodes.end());
      group(g).nodes.clear();
    }
    return into;
  }

  void start_group(Node* node, int level) {
    Group fresh;
    fresh.level = level;
    const auto nothing = [](const Value*) -> std::optional<Residence> { return std::nullopt; };
    const auto residence = fit(*node, nothing, &fresh.space);
    if (!residence) {
      level_of_[node] = level;
      return;
    }
    groups_.push_back(std::move(fresh));
    add(node, static_cast<int>(groups_.size()) - 1, *residence);
  }

  void add(Node* node, int g, Residence residence) {
    group(g).nodes.push_back(node);
    group_of_[node] = g;
    residence_[node->output()] = residence;
  }

  Group& group(int g) { return groups_[static_cast<size_t>(g)]; }

  // ---- Recomputing

  // Values of the group's own size that it reads and does not make, in the order in which they are made.
  std::vector<Value*> full_inputs(int g) {
    std::vector<Value*> inputs;
    std::unordered_set<const Value*> seen;
    for (const Node* node : group(g).nodes) {
      for (int i = 0; i < num_operands(*node); ++i) {
        Value* input = node->input(i);
        if (!input || (input->producer() && group_of(input->producer()) == g) || !seen.insert(input).second) continue;
        if (size(*input) == group(g).space.size) inputs.push_back(input);
      }
    }
    std::sort(inputs.begin(), inputs.end(), [&](const Value* a, const Value* b) { return place(a) < place(b); });
    return inputs;
  }

  int place(const Value* value) const { return value->producer() ? position_.at(value->producer()) : -1; }
  static int64_t size(const Value& value) { return num_elements(value.type().shape()); }

  bool recompute(int g) {
    const int64_t elements = group(g).space.size;
    if (group(g).nodes.size() < 2 || elements < kSmallest) return false;
    bool changed = false;
    std::vector<Value*> inputs = full_inputs(g);
    std::unordered_map<const Value*, Value*> known;  // an input, and what stands for it in the group
    for (Value* source : add_ways_from_narrow(g, &inputs)) known[source] = source;
    for (Value* input : inputs) {
      if (!is_cheap(input)) known[input] = input;
    }
    for (Value* input : inputs) {
      if (known.count(input)) continue;
      const Node& node = *input->producer();
      const bool there = std::all_of(node.inputs().begin(), node.inputs().end(), [&](const Value* operand) {
        return !operand || known.count(operand) || size(*operand) * kMuchSmaller <= elements;
      });
      const bool again = there && group(g).nodes.size() < kMaxNodes;
      known[input] = again ? compute_again(node, g, known) : input;
      changed |= again;
    }
    return changed;
  }

  // An input that one bfloat16 value gives by cheap operations is computed again from there: half as much to read, and
  // to keep until then. Adds what lies between to `inputs`, in order; returns the bfloat16 values.
  std::vector<Value*> add_ways_from_narrow(int g, std::vector<Value*>* inputs) {
    std::vector<Value*> sources;
    std::unordered_set<Value*> all(inputs->begin(), inputs->end());
    for (Value* input : *inputs) {
      Value* source = nullptr;
      std::unordered_set<Value*> between;
      const bool found = size_of(input->dtype()) > size_of(DType::kBFloat16) && find_way(input, &source, &between);
      if (!found || !source || group(g).nodes.size() + between.size() > kMaxNodes) continue;
      sources.push_back(source);
      all.insert(between.begin(), between.end());
    }
    inputs->assign(all.begin(), all.end());
    std::sort(inputs->begin(), inputs->end(), [&](const Value* a, const Value* b) { return place(a) < place(b); });
    return sources;
  }

  // The one bfloat16 value that `value` comes from by cheap operations, and the values between, `value` among them.
  // False when it comes from elsewhere, too, from far away, or from what another group computes again.
  bool find_way(Value* value, Value** source, std::unordered_set<Value*>* between) const {
    constexpr size_t kFar = 16;
    if (value->dtype() == DType::kBFloat16 && (!value->producer() || position_.contains(value->producer()))) {
      if (*source && *source != value) return false;
      *source = value;
      return true;
    }
    if (between->count(value)) return true;
    if (!is_cheap(value) || between->size() == kFar || !position_.contains(value->producer())) return false;
    between->insert(value);
    const std::vector<Value*> operands = value->producer()->inputs();
    return std::all_of(operands.begin(), operands.end(), [&](Value* operand) {
      return !operand || size(*operand) * kMuchSmaller <= size(*value) ||
             (size(*operand) == size(*value) && find_way(operand, source, between));
    });
  }

  // Nodes whose operation costs less than reading its result from memory.
  bool is_cheap(const Value* value) const {
    static const std::unordered_set<std::string> kCheap = {
        "Add",   "Sub",  "Mul",         "Div",   "Neg", "Abs",   "Max",     "Min",  "Relu",
        "Where", "Cast", "And",         "Or",    "Not", "Equal", "Greater", "Less", "GreaterOrEqual",
        "Clip",  "Sqrt", "LessOrEqual", "Expand"};
    const Node* node = value->producer();
    return node && node->domain().empty() && kCheap.count(node->op()) > 0 && can_fuse_(*node);
  }

  Value* compute_again(const Node& node, int g, const std::unordered_map<const Value*, Value*>& known) {
    Value* old = node.output();
    std::vector<Value*> operands = node.inputs();
    for (Value*& operand : operands) {
      const auto found = known.find(operand);
      if (found != known.end()) operand = found->second;
    }
    Node* twin = graph_.add_node(node, operands, {graph_.unique_name(old->name() + "/again")}, first_of(g));
    twin->output()->set_type(old->type());
    const std::vector<Use> uses = old->uses();
    for (const Use& use : uses) {
      if (group_of(use.node) == g) use.node->set_input(use.index, twin->output());
    }
    add(twin, g, Residence::kFull);
    return twin->output();
  }

  // The group's first node, before any that are computed again: those go in front of the whole group, as what it reads
  // may come later in the list, until bring_together.
  Node* first_of(int g) {
    const auto earlier = [&](const Node* a, const Node* b) { return position_.at(a) < position_.at(b); };
    const auto found = first_of_.find(g);
    if (found != first_of_.end()) return found->second;
    const std::vector<Node*>& nodes = group(g).nodes;
    return first_of_[g] = *std::min_element(nodes.begin(), nodes.end(), earlier);
  }

  void remove_unread() {
    Node* previous = nullptr;
    for (Node* node = graph_.last(); node; node = previous) {
      previous = node->previous();
      const auto unread = [&](const Value* value) {
        return !value || (value->uses().empty() && !outputs_.contains(value));
      };
      if (!std::all_of(node->outputs().begin(), node->outputs().end(), unread)) continue;
      const int g = group_of(node);
      if (g >= 0) std::erase(group(g).nodes, node);
      group_of_.erase(node);
      graph_.remove(node);
    }
  }

  // ---- Sinking

  static bool widens(const Node& node) {
    return node.is("Cast") && node.input(0)->dtype() == DType::kBFloat16 && node.output()->dtype() != DType::kBFloat16;
  }

  // What widens a bfloat16 value for one other group is done there: half the bytes are kept meanwhile.
  void hand_over(Node* node) {
    const int from = group_of(node);
    if (from < 0 || !widens(*node) || outputs_.contains(node->output())) return;
    int to = -1;
    for (const Use& use : node->output()->uses()) {
      const int reader = group_of(use.node);
      if (reader < 0 || reader == from || (to >= 0 && reader != to)) return;
      to = reader;
    }
    if (to < 0 || group(to).nodes.size() >= kMaxNodes) return;
    std::vector<Node*> nodes = group(to).nodes;
    nodes.push_back(node);
    sort(&nodes);
    if (!fit_together(nodes)) return;
    std::erase(group(from).nodes, node);
    group(to).nodes = std::move(nodes);
    group_of_[node] = to;
  }

  // A group that only one other group reads joins that one, if no more has to be kept for it meanwhile.
  void sink(int g) {
    int reader = -1, results = 0;
    for (const Node* node : group(g).nodes) {
      if (outputs_.contains(node->output())) return;
      bool outside = false;
      for (const Use& use : node->output()->uses()) {
        const int to = group_of(use.node);
        if (to == g) continue;
        if (to < 0 || (reader >= 0 && reader != to)) return;
        reader = to;
        outside = true;
      }
      results += outside && size(*node->output()) == group(g).space.size;
    }
    if (reader < 0 || group(g).nodes.size() + group(reader).nodes.size() > kMaxNodes) return;
    const auto space = merge(group(g).space, group(reader).space);
    if (!space) return;
    const std::vector<Value*> read = full_inputs(reader);
    const auto ours = full_inputs(g);
    const auto kept_anyway = [&](const Value* input) {
      return !input->producer() || std::find(read.begin(), read.end(), input) != read.end();
    };
    if (std::ssize(ours) - std::count_if(ours.begin(), ours.end(), kept_anyway) > results) return;
    std::vector<Node*> nodes = group(g).nodes;
    nodes.insert(nodes.end(), group(reader).nodes.begin(), group(reader).nodes.end());
    sort(&nodes);
    if (!fit_together(nodes)) return;
    for (Node* node : group(g).nodes) group_of_[node] = reader;
    group(reader).space = *space;
    group(reader).nodes = std::move(nodes);
    group(g).nodes.clear();
  }

  // ---- What stays in a group

  void number_nodes() {
    int position = 0;
    for (Node* node = graph_.first(); node; node = node->next()) position_[node] = position++;
  }

  void sort(std::vector<Node*>* nodes) const {
    std::sort(nodes->begin(), nodes->end(),
              [&](const Node* a, const Node* b) { return position_.at(a) < position_.at(b); });
  }

  // Views cost nothing outside, and would have to be written inside. They stay only between two nodes of the group;
  // whoever else reads them gets one of its own.
  void trim_views(int g) {
    std::vector<Node*>& nodes = group(g).nodes;
    for (Node* node : nodes) {
      const Node* producer = is_view(*node) ? node->input(0)->producer() : node;
      if (!producer || group_of(producer) != g) group_of_.erase(node);
    }
    for (size_t i = nodes.size(); i-- > 0;) {
      if (group_of(nodes[i]) == g && is_view(*nodes[i])) split_view(nodes[i], g);
    }
    nodes.erase(std::remove_if(nodes.begin(), nodes.end(), [&](const Node* node) { return group_of(node) != g; }),
                nodes.end());
  }

  // A bfloat16 value is not widened inside for those outside: twice the bytes would be kept until they read them.
  void trim_widenings(int g) {
    std::vector<Node*>& nodes = group(g).nodes;
    const auto is_read_here = [&](const Node* node) {
      const auto& uses = node->output()->uses();
      return std::any_of(uses.begin(), uses.end(), [&](const Use& use) { return group_of(use.node) == g; });
    };
    std::erase_if(nodes, [&](const Node* node) {
      if (!widens(*node) || is_read_here(node)) return false;
      group_of_.erase(node);
      return true;
    });
  }

  void split_view(Node* view, int g) {
    Value* inside = view->output();
    std::vector<Use> uses_inside, uses_outside;
    for (const Use& use : inside->uses()) (group_of(use.node) == g ? uses_inside : uses_outside).push_back(use);
    const bool is_output = outputs_.contains(inside);
    if (uses_inside.empty()) {
      group_of_.erase(view);
    } else if (!uses_outside.empty() || is_output) {
      Node* twin = graph_.add_node(*view, view->inputs(), {graph_.unique_name(inside->name())}, view->next());
      twin->output()->set_type(inside->type());
      twin->output()->set_elements(inside->elements());
      graph_.replace(inside, twin->output());
      for (const Use& use : uses_inside) use.node->set_input(use.index, inside);
      if (is_output) outputs_.insert(twin->output());
    }
  }

  // Two nodes or more that compute.
  bool is_worth_it(int g) {
    const std::vector<Node*>& nodes = group(g).nodes;
    const auto computes = [](const Node* node) { return !is_view(*node); };
    return std::count_if(nodes.begin(), nodes.end(), computes) >= 2 && fit_together(nodes);
  }

  // The nodes are one island, read in this order, as the kernel will.
  static bool fit_together(const std::vector<Node*>& nodes) {
    std::unordered_map<const Value*, Residence> placed;
    const auto residence_of = [&](const Value* value) {
      const auto found = placed.find(value);
      return found == placed.end() ? std::nullopt : std::optional(found->second);
    };
    Space space;
    for (const Node* node : nodes) {
      const auto residence = fit(*node, residence_of, &space);
      if (!residence) return false;
      placed[node->output()] = *residence;
    }
    return true;
  }

  std::vector<std::vector<Node*>> groups_of_nodes() const {
    std::vector<std::vector<Node*>> nodes;
    for (const Group& group : groups_) nodes.push_back(group.nodes);
    return nodes;
  }

  void dissolve(int g) {
    for (const Node* node : group(g).nodes) group_of_.erase(node);
    group(g).nodes.clear();
  }

  Graph& graph_;
  const std::function<bool(const Node&)>& can_fuse_;
  Marks<Value> outputs_;
  std::vector<Group> groups_;
  NodeTable<int> group_of_;
  NodeTable<int> level_of_;  // of nodes in no group
  ValueTable<Residence> residence_;
  NodeTable<int> position_;
  std::unordered_map<int, Node*> first_of_;  // group -> the node in front of which it computes again
};

}  // namespace

bool fuse_elementwise(Model& model, const std::function<bool(const Node&)>& can_fuse) {
  return Fuser(*model.graph, can_fuse).run();
}

}  // namespace onnx_train
