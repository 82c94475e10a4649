// Where a model ends: cut and join.
#include <algorithm>
#include <unordered_map>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

std::string quoted_names(const std::vector<Value*>& values) {
  std::string text;
  for (const Value* value : values) text += concat(text.empty() ? "'" : ", '", value->name(), "'");
  return text.empty() ? "none" : text;
}

Value* inner_value(const Graph& graph, const std::string& name) {
  Value* value = graph.find(name);
  if (value && value->producer()) return value;
  if (value)
    fail("--cut: '", name, "' is ", graph.is_input(value) ? "an input" : "a weight", ", which no node computes");
  std::vector<std::string> names;
  for (const Node* node = graph.first(); node; node = node->next()) {
    for (const Value* output : node->outputs()) {
      if (output) names.push_back(output->name());
    }
  }
  fail("--cut: the model has no value '", name, "'", did_you_mean(name, names),
       "; `onnx-train show MODEL` lists the values");
}

void cut_at(Model* model, const std::vector<std::string>& names) {
  Graph& graph = *model->graph;
  std::unordered_set<const Value*> read;
  for (const Value* input : graph.inputs()) {
    if (!input->uses().empty()) read.insert(input);
  }
  std::vector<Value*> outputs;
  for (const std::string& name : names) {
    Value* value = inner_value(graph, name);
    if (std::find(outputs.begin(), outputs.end(), value) != outputs.end()) fail("--cut names '", name, "' twice");
    outputs.push_back(value);
  }
  const size_t nodes = graph.num_nodes();
  graph.set_outputs(outputs);
  remove_unneeded(model, read);
  add_adapted_note(model, concat("cut: the model ends at ", quoted_names(outputs), "; ", nodes - graph.num_nodes(),
                                 " of ", nodes, " nodes are gone"));
}

// ---- Join

// Appends one model to another.
class Joiner {
 public:
  Joiner(Model* model, const Model& other, const std::string& name)
      : model_(*model), graph_(*model->graph), other_(other), name_(name) {}

  void run() {
    for (const auto& [domain, version] : other_.context->opsets) {
      int64_t& present = model_.context->opsets[domain];
      present = std::max(present, version);
    }
    const std::vector<Value*> before = graph_.outputs();
    const std::vector<Value*> arguments = inputs();
    Node* const last = graph_.last();
    std::vector<Value*> results;
    try {
      results = instantiate(*other_.graph, &graph_, arguments, "joined");
      for (Node* n = last ? last->next() : graph_.first(); n; n = n->next()) {
        check_shapes(*n);
        infer_types(n);
      }
    } catch (const Error& error) {
      fail("--join: '", name_, "' does not fit the model: ", error.what());
    }
    std::vector<Value*> outputs;
    for (Value* output : before) {
      if (!is_read(output)) outputs.push_back(output);
    }
    for (size_t i = 0; i < results.size(); ++i) outputs.push_back(result(results[i], *other_.graph->outputs()[i]));
    graph_.set_outputs(outputs);
    add_adapted_note(&model_, concat("joined: ", name_, " reads ", quoted_names(read_), "; the outputs are ",
                                     quoted_names(outputs)));
  }

 private:
  // In the order of the other model's inputs, then of its initializers.
  std::vector<Value*> inputs() {
    std::vector<Value*> values;
    for (const Value* input : other_.graph->inputs()) {
      Value* found = graph_.find(input->name());
      if (found && graph_.is_output(found)) {
        expect_fit(*input, *found);
        read_.push_back(found);
        values.push_back(found);
      } else {
        values.push_back(graph_.add_input(graph_.unique_name(input->name()), input->type()));
      }
    }
    if (read_.empty()) {
      fail("--join: the inputs of '", name_, "' are ", quoted_names(other_.graph->inputs()),
           ", and the model's outputs ", quoted_names(graph_.outputs()),
           ": give an input the name of the output that it reads, or cut the model there (--cut)");
    }
    const auto constants = constants_of(other_);
    for (const Value* weight : other_.graph->initializers()) {
      const std::string name = graph_.unique_name(weight->name());
      values.push_back(graph_.add_initializer(name, weight->shared_initializer()));
      const auto why = constants.find(weight->name());
      if (why != constants.end()) model_.set_metadata(std::string(kConstantRecord) + name, why->second);
    }
    return values;
  }

  void expect_fit(const Value& input, const Value& output) const {
    const TensorType &wanted = input.type(), &type = output.type();
    bool fits = wanted.dtype == type.dtype;
    if (fits && wanted.dims && type.dims) {
      fits = wanted.rank() == type.rank();
      for (size_t i = 0; fits && i < wanted.dims->size(); ++i) {
        const Dim &a = (*wanted.dims)[i], &b = (*type.dims)[i];
        fits = !a.known() || !b.known() || a == b;
      }
    }
    if (fits) return;
    fail("--join: input '", input.name(), "' of '", name_, "' is ", to_string(wanted), ", and the model's output ",
         to_string(type));
  }

  // Gives a result the name that it has in the other model, if that is free.
  Value* result(Value* value, const Value& output) {
    if (value->producer() && !is_read(value)) graph_.claim_name(value, output.name());
    return value;
  }

  bool is_read(const Value* value) const { return std::find(read_.begin(), read_.end(), value) != read_.end(); }

  Model& model_;
  Graph& graph_;
  const Model& other_;
  const std::string& name_;
  std::vector<Value*> read_;  // outputs, in the order of the other model's inputs
};

}  // namespace

Pass cut(const std::vector<std::string>& names) {
  return {"cut", [names](Model& model) {
            if (!names.empty()) cut_at(&model, names);
            return !names.empty();
          }};
}

Pass join(std::shared_ptr<const Model> other, const std::string& name) {
  return {"join", [other, name](Model& model) {
            Joiner(&model, *other, name).run();
            return true;
          }};
}

}  // namespace onnx_train
