// Stores images channels last (nhwc), with weights in ONNX's order (oihw). oneDNN's convolutions and tensor cores
// prefer this layout, and it gives channel-wise kernels contiguous rows. ONNX stores channels first.
//
// A node may take part if channels_last_rules.h has a rule for it. A region is a set of such nodes with channels-last
// images; a Transpose is inserted where an image enters or leaves it. The cost model counts bytes moved. A Transpose
// reads and writes its image once, unless it is a view (one channel, or one element per channel) or merges with an
// existing Transpose. Each convolution and pool of the region saves as much per image, because its kernel would
// otherwise reorder the image itself. The initial region holds all nodes that images connect to a convolution. Then
// nodes leave one by one if that does not increase the cost, and finally every connected part that costs more than it
// saves is dropped. Only the order of sums changes: in convolutions, reductions and batch normalization.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "kernels/lowering/layout/channels_last_rules.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train {
namespace {

using Rule = ChannelsLastRule;

bool contains(const std::vector<int>& numbers, int n) {
  return std::find(numbers.begin(), numbers.end(), n) != numbers.end();
}

// Returns the bytes that a Transpose of the image moves.
int64_t transpose_bytes(const Value& image) {
  const Shape shape = image.type().shape();
  if (only_moves_ones(shape, to_channels_last(image.rank()))) return 0;
  return 2 * num_elements(shape) * static_cast<int64_t>(size_of(image.dtype()));
}

// ---- Selection of the nodes

class Region {
 public:
  Region(const Graph& graph, const std::function<bool(const Node&, Rule*)>& takes) : graph_(graph) {
    for (Node* node = graph.first(); node; node = node->next()) {
      auto rule = channels_last_rule(*node);
      if (rule && (!takes || takes(*node, &*rule))) {
        order_.push_back(node);
        rules_.emplace(node, std::move(*rule));
      }
    }
    keep_parts([](const ConnectedPart& part) { return part.saved > 0; });
    while (shrink()) {
    }
    keep_parts([](const ConnectedPart& part) { return part.saved > part.cost; });
  }

  // The nodes in graph order.
  const std::vector<Node*>& nodes() const { return order_; }
  const Rule* rule(const Node* node) const {
    const auto found = rules_.find(node);
    return found == rules_.end() ? nullptr : &found->second;
  }
  // Whether the node reads its input `index` channels last.
  bool reads(const Use& use) const {
    const Rule* r = rule(use.node);
    return r && contains(r->inputs, use.index);
  }
  bool writes(const Value& value) const {
    const Rule* r = value.producer() ? rule(value.producer()) : nullptr;
    return r && contains(r->outputs, value.output_index());
  }

 private:
  // A connected part of the region: the bytes that its nodes save, and those that Transposes at its border move.
  struct ConnectedPart {
    int64_t saved = 0, cost = 0;
  };

  template <typename F>
  void for_each_image(const Node& node, const F& f) const {
    const Rule& r = rules_.at(&node);
    for (int i : r.inputs) f(*node.input(i));
    for (int i : r.outputs) f(*node.output(i));
  }

  int64_t saved_by(const Node& node) const {
    int64_t bytes = 0;
    if (rules_.at(&node).gains) for_each_image(node, [&](const Value& image) { bytes += transpose_bytes(image); });
    return bytes;
  }

  // Returns the cost of the Transpose that the image needs at the border of the region.
  int64_t border_cost(const Value& image) const {
    const auto merges = [](const Node* node) { return node && node->is("Transpose"); };
    bool inside = false, outside = graph_.is_output(&image);
    for (const Use& use : image.uses()) {
      if (reads(use))
        inside = true;
      else
        outside = outside || !merges(use.node);
    }
    if (writes(image)) return outside ? transpose_bytes(image) : 0;
    return inside && !merges(image.producer()) ? transpose_bytes(image) : 0;
  }

  int64_t borders_of(const std::vector<const Value*>& images) const {
    int64_t bytes = 0;
    for (const Value* image : images) bytes += border_cost(*image);
    return bytes;
  }

  // Removes nodes whose removal does not increase the cost, in both directions, so that a chain of such nodes is
  // removed in one pass. Returns false if there is none.
  bool shrink() {
    for (const Node* node : order_) leave_if_cheaper(node);
    for (size_t i = order_.size(); i-- > 0;) leave_if_cheaper(order_[i]);
    return std::erase_if(order_, [&](const Node* node) { return !rules_.count(node); }) > 0;
  }

  void leave_if_cheaper(const Node* node) {
    if (!rule(node)) return;
    std::vector<const Value*> images;
    for_each_image(*node, [&](const Value& image) {
      if (std::find(images.begin(), images.end(), &image) == images.end()) images.push_back(&image);
    });
    const int64_t with = borders_of(images) - saved_by(*node);
    auto left = rules_.extract(node);
    if (borders_of(images) > with) rules_.insert(std::move(left));
  }

  // Removes the connected parts that `keep` rejects.
  template <typename F>
  void keep_parts(const F& keep) {
    std::unordered_map<const Value*, const Value*> parents;
    const auto root = [&](const Value* value) {
      const Value* top = parents.try_emplace(value, value).first->second;
      while (parents.at(top) != top) top = parents.at(top);
      while (value != top) value = std::exchange(parents.at(value), top);
      return top;
    };
    const auto first_image = [&](const Node& node) { return node.input(rules_.at(&node).inputs[0]); };
    for (const Node* node : order_) {
      const Value* first = first_image(*node);
      for_each_image(*node, [&](const Value& image) { parents.at(root(&image)) = root(first); });
    }
    std::unordered_map<const Value*, ConnectedPart> parts;
    for (const Node* node : order_) parts[root(first_image(*node))].saved += saved_by(*node);
    std::vector<const Value*> images;
    for (const auto& [image, parent] : parents) images.push_back(image);
    for (const Value* image : images) parts[root(image)].cost += border_cost(*image);
    std::erase_if(rules_, [&](const auto& entry) { return !keep(parts.at(root(first_image(*entry.first)))); });
    std::erase_if(order_, [&](const Node* node) { return !rules_.count(node); });
  }

  const Graph& graph_;
  std::vector<Node*> order_;
  std::unordered_map<const Node*, Rule> rules_;
};

// ---- Rewriting

class Rewriter {
 public:
  Rewriter(Graph* graph, const Region& region) : graph_(*graph), region_(region) {}

  void run() {
    for (Node* node : region_.nodes()) rewrite(node);
    for (size_t i = region_.nodes().size(); i-- > 0;) graph_.remove(region_.nodes()[i]);
  }

 private:
  void rewrite(Node* node) {
    const Rule& rule = *region_.rule(node);
    Builder b(&graph_, node);
    std::vector<Var> inputs;
    for (int i = 0; i < node->num_inputs(); ++i) {
      Value* input = node->input(i);
      const bool image = contains(rule.inputs, i);
      inputs.push_back(image ? b.var(enter(input, b)) : input ? b.var(input) : Var());
    }
    Value* named = nullptr;
    for (Value* output : node->outputs()) named = named ? named : output;
    b.set_name(named->name());
    const std::vector<Var> outputs = rule.write(b, inputs);
    for (int i = 0; i < node->num_outputs(); ++i) {
      Value* old = node->output(i);
      if (!old) continue;
      Value* with = outputs.at(static_cast<size_t>(i)).value();
      contains(rule.outputs, i) ? leave(old, with, b) : graph_.replace(old, with);
    }
  }

  // Returns the image in channels-last order.
  Value* enter(Value* image, Builder& b) {
    Value*& known = channels_last_[image];
    if (!known) {
      b.set_name(image->name() + "/channels_last");
      known = permuted(b.var(image), to_channels_last(image->rank())).value();
    }
    return known;
  }

  // Registers `with`, the image channels last. Readers outside the region still read it channels first.
  void leave(Value* image, Value* with, Builder& b) {
    channels_last_[image] = with;
    bool outside = graph_.is_output(image);
    const std::vector<Use> uses = image->uses();
    for (const Use& use : uses) outside = outside || !region_.reads(use);
    if (!outside) return;
    b.set_name(image->name() + "/channels_first");
    Value* first = permuted(b.var(with), to_channels_first(image->rank())).value();
    // A Transpose that reads the image merges with the new one, which may then have no reader.
    for (const Use& use : uses) {
      if (region_.reads(use)) continue;
      if (use.node->is("Transpose") && use.node->has_attr("perm")) {
        merge(use.node, first);
      } else {
        use.node->set_input(use.index, first);
      }
    }
    if (graph_.is_output(image)) graph_.replace(image, first);
    channels_last_[first] = with;
  }

  void merge(Node* node, Value* first) {
    node->set_input(0, first);
    Graph& graph = node->graph();
    Builder b(&graph, node);
    b.set_name(node->output()->name());
    graph.replace(node->output(), permuted(b.var(first), node->attr("perm", std::vector<int64_t>{})).value());
    graph.remove(node);
  }

  Graph& graph_;
  const Region& region_;
  std::unordered_map<const Value*, Value*> channels_last_;  // by image
};

}  // namespace

bool channels_last(Model& model, const std::function<bool(const Node&, Rule*)>& takes) {
  const Region region(*model.graph, takes);
  if (region.nodes().empty()) return false;
  Rewriter(model.graph.get(), region).run();
  return true;
}

}  // namespace onnx_train
