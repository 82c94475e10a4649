#include "onnx_passes/foreign/foreign.h"

#include <algorithm>

#include "onnx_passes/foreign/missing.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

Var Foreign::x(int i) const {
  if (!has(i)) refuse(concat("input ", i, " is missing; export the model again"));
  return builder_->var(node_->input(i));
}

Var Foreign::floats(int i) const {
  const Var value = x(i);
  return is_float(value.dtype()) ? value : cast(value, DType::kFloat);
}

Var Foreign::table(int i) const {
  const Var value = x(i);
  return value.value()->is_initializer() ? builder_->var(set_buffer(value.value())) : value;
}

bool Foreign::wants(int i) const {
  const Value* output = node_->output(i);
  return output && (!output->uses().empty() || output->graph().is_output(output));
}

int64_t Foreign::rank(int i) const {
  const Value* value = x(i).value();
  if (!value->has_rank())
    refuse(concat("the rank of '", value->name(), "' is not known; ", unknown_rank_advice(*value)));
  return value->rank();
}

int64_t Foreign::size(int i, int64_t axis) const {
  const int64_t count = rank(i), at = axis < 0 ? axis + count : axis;
  const Value& value = *node_->input(i);
  if (at < 0 || at >= count)
    refuse(concat("'", value.name(), "' is ", to_string(value.type()), ", without an axis ", axis,
                  "; export the model again"));
  const Dim& dim = (*value.type().dims)[static_cast<size_t>(at)];
  if (!dim.known())
    refuse(concat("size ", axis, " of '", value.name(), "' is not known; give it (--dim) or export it"));
  return dim.value();
}

Attrs Foreign::attributes(const std::vector<std::string>& names) const {
  Attrs attrs;
  for (const std::string& name : names) {
    const onnx::AttributeProto* given = node_->find_attr(name);
    if (!given) continue;
    switch (given->type()) {
      case onnx::AttributeProto::INT: attrs.emplace_back(name, static_cast<int64_t>(given->i())); break;
      case onnx::AttributeProto::FLOAT: attrs.emplace_back(name, given->f()); break;
      case onnx::AttributeProto::STRING: attrs.emplace_back(name, given->s()); break;
      case onnx::AttributeProto::INTS: attrs.emplace_back(name, node_->attr(name, std::vector<int64_t>())); break;
      default: refuse(concat("its attribute '", name, "' has an unknown type; export the model again"));
    }
  }
  return attrs;
}

std::pair<std::string, Tensor> Foreign::numbers(const std::string& attribute, const Shape& shape) const {
  const std::vector<float> numbers = node_->attr(attribute, std::vector<float>());
  const auto count = static_cast<int64_t>(numbers.size());
  if (count != num_elements(shape))
    refuse(concat("its attribute '", attribute, "' has ", count, " numbers, not ", num_elements(shape), " for ",
                  to_string(shape), "; export the model again"));
  const std::string name = concat(node_->name().empty() ? node_->op() : node_->name(), ".", attribute);
  return {builder_->graph().unique_name(name), Tensor::of<float>(shape, numbers)};
}

Var Foreign::weight(const std::string& attribute, const Shape& shape) const {
  const auto [name, contents] = numbers(attribute, shape);
  return builder_->var(builder_->graph().add_initializer(name, contents));
}

Var Foreign::buffer(const std::string& attribute, const Shape& shape) const {
  const auto [name, contents] = numbers(attribute, shape);
  return builder_->var(builder_->graph().add_initializer(name, make_buffer(name, contents)));
}

void Foreign::refuse(const std::string& reason) const { fail("[Import] ", node_->label(), ": ", reason); }

void Foreign::expect_absent(int i, const std::string& reason) const {
  if (has(i)) refuse(reason);
}

Var plus(Var x, Var y) { return y ? x + y : x; }

Var fused_activation(const Foreign& f, Var x, const std::vector<float>& numbers) {
  const std::string name = f.node().attr("activation", "");
  if (name.empty()) return x;
  Builder& b = f.b();
  if (name == "Clip" && numbers.size() == 2)
    return b.op("Clip", {x, b.scalar(x.dtype(), static_cast<double>(numbers[0])),
                         b.scalar(x.dtype(), static_cast<double>(numbers[1]))});
  const Operator* row = find_operator("", name);
  if (!row || row->kind != OperatorKind::kElementwise || numbers.size() > 2)
    f.refuse(concat("its activation '", name, "' is not known here; optimize the model without fusions"));
  Attrs attrs;
  if (!numbers.empty()) attrs.emplace_back("alpha", numbers[0]);
  if (numbers.size() == 2) attrs.emplace_back("beta", numbers[1]);
  return b.op(name, {x}, attrs);
}

const std::vector<const ForeignRow*>& foreign_rows() {
  static const std::vector<const ForeignRow*> all = [] {
    static const std::vector<std::vector<ForeignRow>> families = {
        microsoft_rows(),    normalization_foreign(), attention_foreign(),
        quantized_foreign(), learning_foreign(),      qonnx_foreign(),
    };
    std::vector<const ForeignRow*> rows;
    for (const auto& family : families) {
      for (const ForeignRow& row : family) rows.push_back(&row);
    }
    return rows;
  }();
  return all;
}

const ForeignRow* find_foreign(const Node& node) {
  for (const ForeignRow* row : foreign_rows()) {
    if (node.is(row->op, row->domain)) return row;
  }
  return nullptr;
}

std::string refusal_of_foreign(const Node& node) {
  const ForeignRow* row = find_foreign(node);
  if (row) return row->refusal;
  if (node.domain() == "com.microsoft.nchwc" || node.domain() == "com.ms.internal.nhwc") {
    return "ONNX Runtime has laid this model out for one processor; take the model before that, or write it with "
           "graph_optimization_level ORT_ENABLE_EXTENDED at most";
  }
  return "";
}

bool rewrite_foreign(Node* node) {
  const ForeignRow* row = find_foreign(*node);
  if (!row || !row->rewrite) return false;
  Graph& graph = node->graph();
  Builder b(&graph, node);
  Foreign foreign(&b, node);
  std::string name;
  for (const Value* output : node->outputs()) {
    if (name.empty() && output) name = output->name();
  }
  b.set_name(name + "/" + node->op());
  const Results results = row->rewrite(foreign);
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (!foreign.wants(i)) continue;
    Var made = static_cast<size_t>(i) < results.size() ? results[static_cast<size_t>(i)] : Var();
    if (!made)
      foreign.refuse(concat("something reads its output ", i, ", which is not computed here; export without it"));
    // What is no value of the new nodes alone keeps its name.
    const bool own = made.value()->producer() && &made.value()->graph() == &graph;
    const auto taken = std::count_if(results.begin(), results.end(), [&](Var r) { return r.value() == made.value(); });
    if (!own || taken > 1 || made.value()->producer() == node) made = b.op("Identity", {made});
    const std::string output = node->output(i)->name();
    graph.rename(node->output(i), graph.unique_name(output + "/fused"));
    graph.replace(node->output(i), made.value());
    if (made.value()->name() != output && !graph.find(output)) graph.rename(made.value(), output);
  }
  std::vector<Value*> inputs = node->inputs();
  std::sort(inputs.begin(), inputs.end());  // a node may read one initializer twice
  inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
  graph.remove(node);
  for (Value* input : inputs) {  // weights that are stored in another form now
    const bool unread = input && input->is_initializer() && input->uses().empty();
    if (unread && &input->graph() == &graph && !graph.is_output(input)) graph.remove_initializer(input);
  }
  return true;
}

}  // namespace onnx_train
