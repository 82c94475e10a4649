#include <unordered_map>

#include "kernels/cpu/lowering/lowering.h"
#include "kernels/device.h"
#include "kernels/lowering/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/ir/windows.h"

namespace onnx_train::cpu {
namespace {

// Operators whose inputs 0 and 1 are operands; of the function of the same name with Bfloat16 in front.
struct ProductRow {
  const char* op;
  const char* domain = "";
  std::vector<const char*> ints = {};    // attributes with one number
  std::vector<const char*> floats = {};  // likewise
  std::vector<const char*> lists = {};
  bool has_windows = false;
};

const ProductRow* find_row(const Node& node) {
  static const std::vector<ProductRow> rows = {
      {"MatMul"},
      {"Gemm", "", {"transA", "transB"}, {"alpha", "beta"}},
      {"TransposedMatMul", kDomain, {}, {}, {"perm_a", "perm_b", "perm_y"}},
      {"Conv", "", {"group"}, {}, {}, true},
      {"ConvGradInput", kDomain, {"group"}, {}, {}, true},
      {"ConvGradWeight", kDomain, {"group"}, {}, {}, true},
      {"ChannelsLastConv", kDomain, {"group"}, {}, {}, true},
      {"ChannelsLastConvGradInput", kDomain, {"group"}, {}, {}, true},
      {"ChannelsLastConvGradWeight", kDomain, {"group"}, {}, {}, true},
  };
  for (const ProductRow& row : rows) {
    if (node.is(row.op, row.domain)) return &row;
  }
  return nullptr;
}

Attrs attributes(const Node& node, const ProductRow& row) {
  Attrs attrs;
  for (const char* name : row.ints) {
    if (node.has_attr(name)) attrs.emplace_back(name, node.attr(name, 0));
  }
  for (const char* name : row.floats) {
    if (node.has_attr(name)) attrs.emplace_back(name, node.attr(name, 0.0f));
  }
  for (const char* name : row.lists) attrs.emplace_back(name, node.attr(name, Shape{}));
  if (row.has_windows) {
    const Windows windows = *find_windows(node);
    attrs.insert(attrs.end(),
                 {{"strides", windows.strides}, {"dilations", windows.dilations}, {"pads", windows.pads()}});
  }
  return attrs;
}

class Bfloat16Products {
 public:
  explicit Bfloat16Products(Graph* graph) : graph_(*graph) {}

  bool run() {
    bool changed = false;
    for (Node* node : graph_.nodes()) {
      if (const ProductRow* row = find_row(*node)) changed = rewrite(node, *row) || changed;
    }
    return changed;
  }

 private:
  bool rewrite(Node* node, const ProductRow& row) {
    Value* a = narrow(node->input(0));
    Value* b = a ? narrow(node->input(1)) : nullptr;
    if (!b) return false;
    Builder builder(&graph_, node);
    builder.set_name(node->output()->name());
    std::vector<Var> inputs = {builder.var(a), builder.var(b)};
    for (int i = 2; i < node->num_inputs(); ++i) {
      inputs.push_back(node->input(i) ? builder.var(node->input(i)) : Var());
    }
    const auto outputs =
        call(builder, std::string("Bfloat16") + row.op, node->num_outputs(), inputs, attributes(*node, row));
    Node* made = outputs[0].value()->producer();
    if (!find_kernel(Device::cpu(), NodeSpec(*made, std::vector<Tensor>(inputs.size()), num_threads()))) {
      graph_.remove(made);
      return false;
    }
    for (int i = 0; i < node->num_outputs(); ++i) {
      if (node->output(i)) graph_.replace(node->output(i), made->output(i));
    }
    graph_.remove(node);
    return true;
  }

  // What `value` is widened from, seen in value's shape; null when it is something else.
  Value* narrow(const Value* value) {
    std::vector<const Value*> views;  // from `value` on backwards
    while (!narrow_.count(value) && value->producer() && is_view(*value->producer())) {
      views.push_back(value);
      value = value->producer()->input(0);
    }
    Value* found = narrow_.try_emplace(value, widened(value)).first->second;
    for (auto v = views.rbegin(); v != views.rend(); ++v) {
      if (found) found = view(*(*v)->producer(), found);
      narrow_[*v] = found;
    }
    return found;
  }

  static Value* widened(const Value* value) {
    const Node* node = value->producer();
    const bool widens =
        node && node->is("Cast") && node->input(0)->dtype() == DType::kBFloat16 && value->dtype() == DType::kFloat;
    return widens ? node->input(0) : nullptr;
  }

  Value* view(Node& of, Value* source) {
    Builder b(&graph_, of.next());
    b.set_name(source->name() + "/view");
    std::vector<Var> inputs = {b.var(source)};
    for (int i = 1; i < of.num_inputs(); ++i) inputs.push_back(b.var(of.input(i)));
    Value* made = b.like(of, inputs)[0].value();
    made->set_type({source->dtype(), of.output()->type().dims});
    return made;
  }

  Graph& graph_;
  std::unordered_map<const Value*, Value*> narrow_;
};

}  // namespace

bool bfloat16_products(Model& model) { return Bfloat16Products(model.graph.get()).run(); }

}  // namespace onnx_train::cpu
