#include "onnx_passes/distribution/bucket_collectives.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/elements.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/inputs.h"

namespace onnx_train {
namespace {

// What the collectives of a bucket have in common.
struct Kind {
  std::string op;
  int64_t root = 0, any_order = 0;
  DType dtype = DType::kUndefined;
  Value* active = nullptr;            // of sums
  const Value* one_number = nullptr;  // their x, where it is one number for all elements

  auto operator<=>(const Kind&) const = default;
};

// Nothing for what is exchanged alone.
std::optional<Kind> kind_of(const Node& node) {
  const bool sums = node.is("AllReduce", kDomain) || node.is("Reduce", kDomain);
  if (!sums && !node.is("Broadcast", kDomain) && !node.is("AllGather", kDomain)) return {};
  const Value &x = *node.input(0), &y = *node.output();
  if (!y.type().is_static() || !x.type().is_static() || exchanged_bytes(y) > kBytesInBucket || exchanged_bytes(y) == 0)
    return {};
  Kind kind{.op = node.op(), .root = node.attr("root", 0), .any_order = node.attr(kAnyOrder, 0), .dtype = y.dtype()};
  if (!sums) return kind;
  kind.active = node.input(2);
  if (num_elements(x.type().shape()) == 1) {
    if (num_elements(y.type().shape()) > 1) kind.one_number = &x;
  } else if (x.type().shape() != y.type().shape()) {
    return {};
  }
  return kind;
}

class Buckets {
 public:
  Buckets(Graph* graph, const std::string& mesh_axis, int64_t most) : graph_(*graph), mesh_axis_(mesh_axis) {
    int64_t all = 0;
    for (const Node* node = graph_.first(); node; node = node->next())
      all += is_meant(*node) ? exchanged_bytes(*node->output()) : 0;
    most_ = std::clamp(all / kParts, std::min(most, kFewBytes), most);
  }

  void run() {
    for (Node *node = graph_.first(), *next = nullptr; node; node = next) {
      next = node->next();
      for_each_input(*node, [&](const Value* v) { split_before(node, v->producer()); });
      if (!is_meant(*node)) continue;
      std::vector<Node*>& bucket = open_[*kind_of(*node)];
      const bool is_full = std::ssize(bucket) == kMaxElements;  // inference reads as many sizes of Split
      if (is_full || (!bucket.empty() && bytes_of(bucket) + exchanged_bytes(*node->output()) > most_)) close(&bucket);
      bucket.push_back(node);
    }
    for (auto& [kind, bucket] : open_) close(&bucket);
    while (!closed_.empty()) split(closed_.begin(), nullptr);
  }

 private:
  struct Closed {
    Value* y;
    std::vector<Node*> nodes;
  };

  bool is_meant(const Node& node) const { return kind_of(node) && node.attr(kMeshAxis, "") == mesh_axis_; }

  static int64_t bytes_of(const std::vector<Node*>& nodes) {
    int64_t bytes = 0;
    for (const Node* node : nodes) bytes += exchanged_bytes(*node->output());
    return bytes;
  }

  // The inputs of this number, one after the other.
  static Var joined(Builder* b, const std::vector<Node*>& nodes, int input) {
    std::vector<Var> parts;
    for (const Node* node : nodes) parts.push_back(reshape(b->var(node->input(input)), std::vector<int64_t>{-1}));
    return concat(parts, 0);
  }

  // The exchange comes after the last of its nodes.
  void close(std::vector<Node*>* bucket) {
    const std::vector<Node*> nodes = std::exchange(*bucket, {});
    if (nodes.size() < 2) return;
    const Node& last = *nodes.back();
    const Kind kind = *kind_of(last);
    Builder b(&graph_, last.next());
    b.set_name(last.output()->name() + "/bucket");
    const Var x = kind.one_number ? b.var(const_cast<Value*>(kind.one_number)) : joined(&b, nodes, 0);
    const std::vector<Var> inputs =
        kind.active ? std::vector{x, joined(&b, nodes, 1), b.var(kind.active)} : std::vector{x};
    closed_.push_back({b.like(last, inputs)[0].value(), nodes});
  }

  // What reads a result of an exchange waits for it.
  void split_before(Node* reader, const Node* producer) {
    const auto has = [&](const std::vector<Node*>& nodes) { return std::ranges::find(nodes, producer) != nodes.end(); };
    for (auto& [kind, bucket] : open_) {
      if (has(bucket)) close(&bucket);
    }
    const auto closed = std::ranges::find_if(closed_, has, &Closed::nodes);
    if (closed != closed_.end()) split(closed, reader);
  }

  void split(std::vector<Closed>::iterator at, Node* before) {
    const auto [y, nodes] = std::move(*at);
    closed_.erase(at);
    Builder b(&graph_, before);
    b.set_name(y->name() + "/parts");
    const bool gathers = nodes[0]->is("AllGather", kDomain);
    std::vector<int64_t> sizes;
    for (const Node* node : nodes)
      sizes.push_back(num_elements((gathers ? node->input(0) : node->output())->type().shape()));
    const std::vector<Var> parts =
        b.ops("Split", static_cast<int>(nodes.size()), {b.var(y), b.ints(sizes)}, {{"axis", gathers ? 1 : 0}});
    for (size_t i = 0; i < nodes.size(); ++i) {
      b.set_name(nodes[i]->output()->name());
      const Var part = reshape(parts[i], nodes[i]->output()->type().shape());
      graph_.replace(nodes[i]->output(), part.value());
      graph_.remove(nodes[i]);
    }
  }

  static constexpr int64_t kParts = 8;

  Graph& graph_;
  const std::string mesh_axis_;
  int64_t most_;
  std::map<Kind, std::vector<Node*>> open_;
  std::vector<Closed> closed_;
};

}  // namespace

void bucket_collectives(Model* flat, const std::string& mesh_axis, int64_t bytes_of_bucket) {
  infer_types(flat->graph.get());  // a model that was a file knows the types of its inputs alone
  Buckets(flat->graph.get(), mesh_axis, bytes_of_bucket).run();
}

}  // namespace onnx_train
