#include "onnx_passes/import/node_order.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
using Names = std::vector<std::string_view>;

std::string label(const onnx::NodeProto& node) {
  const std::string& name = !node.name().empty() || node.output().empty() ? node.name() : node.output(0);
  return concat("node '", name, "' (", node.op_type(), ")");
}

template <typename F>
void for_each_subgraph(onnx::NodeProto* node, const F& f) {
  for (auto& attribute : *node->mutable_attribute()) {
    if (attribute.has_g()) f(attribute.mutable_g());
    for (auto& graph : *attribute.mutable_graphs()) f(&graph);
  }
}

void add_reads(onnx::NodeProto* node, Names* reads);

// The values that a subgraph reads from outer graphs.
void add_outer_reads(onnx::GraphProto* graph, Names* reads) {
  Names inner;
  std::unordered_set<std::string_view> own;
  for (const auto& input : graph->input()) own.insert(input.name());
  for (const auto& tensor : graph->initializer()) own.insert(tensor.name());
  for (const auto& tensor : graph->sparse_initializer()) own.insert(tensor.values().name());
  for (auto& node : *graph->mutable_node()) {
    for (const std::string& name : node.output()) own.insert(name);
    add_reads(&node, &inner);
  }
  for (const auto& output : graph->output()) inner.push_back(output.name());
  for (const std::string_view name : inner) {
    if (!own.count(name)) reads->push_back(name);
  }
}

void add_reads(onnx::NodeProto* node, Names* reads) {
  for (const std::string& name : node->input()) {
    if (!name.empty()) reads->push_back(name);
  }
  for_each_subgraph(node, [&](onnx::GraphProto* graph) { add_outer_reads(graph, reads); });
}

// For each node, the nodes of the same list whose outputs it reads.
std::vector<std::vector<int>> find_sources(Nodes* nodes) {
  std::unordered_map<std::string_view, int> producers;
  for (int i = 0; i < nodes->size(); ++i) {
    for (const std::string& name : nodes->Get(i).output()) {
      if (!name.empty()) producers.emplace(name, i);
    }
  }
  std::vector<std::vector<int>> sources(static_cast<size_t>(nodes->size()));
  Names reads;
  for (int i = 0; i < nodes->size(); ++i) {
    reads.clear();
    add_reads(nodes->Mutable(i), &reads);
    for (const std::string_view name : reads) {
      if (const auto found = producers.find(name); found != producers.end())
        sources[static_cast<size_t>(i)].push_back(found->second);
    }
  }
  return sources;
}

bool is_ordered(const std::vector<std::vector<int>>& sources) {
  for (size_t i = 0; i < sources.size(); ++i) {
    for (const int source : sources[i]) {
      if (source >= static_cast<int>(i)) return false;
    }
  }
  return true;
}

// Every node that is not `done` reads another one that is not; following these edges leads into a cycle.
[[noreturn]] void report_cycle(const Nodes& nodes, const std::vector<std::vector<int>>& sources,
                               const std::vector<bool>& done) {
  const auto waits_for = [&](int node) {
    const auto& all = sources[static_cast<size_t>(node)];
    return *std::find_if(all.begin(), all.end(), [&](int source) { return !done[static_cast<size_t>(source)]; });
  };
  std::vector<int> path;
  std::unordered_map<int, size_t> places;
  int node = static_cast<int>(std::find(done.begin(), done.end(), false) - done.begin());
  for (; places.emplace(node, path.size()).second; node = waits_for(node)) path.push_back(node);
  path.erase(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(places.at(node)));

  constexpr size_t kMaxNamed = 6;
  std::string text = label(nodes.Get(path[0]));
  for (size_t i = 1; i < path.size() && i < kMaxNamed; ++i) text += " reads " + label(nodes.Get(path[i]));
  if (path.size() > kMaxNamed) text += concat(" and so on, ", path.size(), " nodes in all,");
  fail_as(ErrorCode::kBrokenGraph, "[Import] the graph has a cycle: ", text, " reads ", label(nodes.Get(path[0])),
          "; no order of these nodes can run, so the file is damaged: export it again");
}

// Kahn's algorithm; of the nodes that are ready, the first one in the file comes first.
std::vector<int> topological_order(const Nodes& nodes, const std::vector<std::vector<int>>& sources) {
  const size_t count = sources.size();
  std::vector<std::vector<int>> readers(count);
  std::vector<size_t> waiting(count);
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (size_t i = 0; i < count; ++i) {
    waiting[i] = sources[i].size();
    if (waiting[i] == 0) ready.push(static_cast<int>(i));
    for (const int source : sources[i]) readers[static_cast<size_t>(source)].push_back(static_cast<int>(i));
  }
  std::vector<int> order;
  std::vector<bool> done(count, false);
  while (!ready.empty()) {
    const int node = ready.top();
    ready.pop();
    order.push_back(node);
    done[static_cast<size_t>(node)] = true;
    for (const int reader : readers[static_cast<size_t>(node)]) {
      if (--waiting[static_cast<size_t>(reader)] == 0) ready.push(reader);
    }
  }
  if (order.size() < count) report_cycle(nodes, sources, done);
  return order;
}

using Defined = std::unordered_set<std::string_view>;

Defined names_in(const onnx::GraphProto& graph) {
  Defined defined;
  for (const auto& input : graph.input()) defined.insert(input.name());
  for (const auto& tensor : graph.initializer()) defined.insert(tensor.name());
  for (const auto& tensor : graph.sparse_initializer()) defined.insert(tensor.values().name());
  for (const auto& node : graph.node()) {
    for (const std::string& name : node.output()) {
      if (!name.empty() && !defined.insert(name).second)
        fail_as(ErrorCode::kBrokenGraph, "[Import] ", label(node), " writes '", name,
                "', the name of another value; which of the two its readers mean is not known, so the file is damaged: "
                "export it again, with other names");
    }
  }
  return defined;
}

// `scopes`: the names of the graphs around this one; as before after the call.
void expect_defined(const onnx::GraphProto& graph, std::vector<Defined>* scopes) {
  scopes->push_back(names_in(graph));
  for (const auto& node : graph.node()) {
    for (const std::string& name : node.input()) {
      const auto defines = [&](const Defined& scope) { return scope.count(name) > 0; };
      if (name.empty() || std::any_of(scopes->rbegin(), scopes->rend(), defines)) continue;
      std::vector<std::string> names;
      for (const Defined& scope : *scopes) names.insert(names.end(), scope.begin(), scope.end());
      std::sort(names.begin(), names.end());
      fail_as(ErrorCode::kBrokenGraph, "[Import] ", label(node), " reads '", name,
              "', which is no input, no initializer and no output of a node", did_you_mean(name, names));
    }
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) expect_defined(attribute.g(), scopes);
      for (const auto& subgraph : attribute.graphs()) expect_defined(subgraph, scopes);
    }
  }
  scopes->pop_back();
}

bool sort(Nodes* nodes) {
  bool moved = false;
  for (auto& node : *nodes) {
    for_each_subgraph(&node, [&](onnx::GraphProto* graph) { moved = sort(graph->mutable_node()) || moved; });
  }
  const std::vector<std::vector<int>> sources = find_sources(nodes);
  if (is_ordered(sources)) return moved;
  Nodes sorted;
  sorted.Reserve(nodes->size());
  for (const int node : topological_order(*nodes, sources)) sorted.Add()->Swap(nodes->Mutable(node));
  nodes->Swap(&sorted);
  return true;
}

}  // namespace

void expect_defined_names(const onnx::GraphProto& graph) {
  std::vector<Defined> scopes;
  expect_defined(graph, &scopes);
}

bool sort_nodes(onnx::ModelProto* model) {
  bool moved = sort(model->mutable_graph()->mutable_node());
  for (auto& function : *model->mutable_functions()) moved = sort(function.mutable_node()) || moved;
  return moved;
}

}  // namespace onnx_train
