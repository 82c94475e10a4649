#include "onnx_passes/loss/loss_model.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

// The arguments of a joined model's nodes: values of the forward model, new inputs, constants.
class LossArguments {
 public:
  // `kind` is "loss model" or "teacher", for messages.
  LossArguments(Builder* builder, const LossModel& loss, const std::function<Value*(Value*)>& version,
                const char* kind = "loss model")
      : b_(*builder), loss_(loss), version_(version), kind_(kind) {}

  // Of a teacher: all its inputs are inputs of the forward model.
  std::vector<Value*> of_teacher() {
    const Graph& model = *b_.graph().parent();
    std::vector<Value*> values;
    for (const Value* input : loss_.model.graph->inputs()) {
      Value* found = model.find(input->name());
      if (!found || !model.is_input(found)) {
        fail_as(ErrorCode::kLossModel, "[Loss] input '", input->name(), "' of the teacher '", loss_.name,
                "' is no input of the model, whose inputs are ", names_of(model.inputs()),
                ": rename it in the teacher");
      }
      values.push_back(joined(*input, found));
    }
    add_weights("teacher/", &values);
    return values;
  }

  // In the order of the loss's inputs, then of its initializers.
  std::vector<Value*> values() {
    const Graph& loss = *loss_.model.graph;
    std::unordered_map<const Value*, Value*> read;
    for (const Value* input : loss.inputs()) {
      if (Value* found = b_.graph().find(input->name())) read[input] = joined(*input, found);
    }
    if (read.empty()) fail_without_prediction();
    std::vector<Value*> values;
    for (const Value* input : loss.inputs()) {
      const auto known = read.find(input);
      values.push_back(known != read.end() ? known->second : b_.graph().add_input(input->name(), new_type(*input)));
    }
    add_weights("loss/", &values);
    return values;
  }

 private:
  void add_weights(const std::string& prefix, std::vector<Value*>* values) {
    for (const Value* weight : loss_.model.graph->initializers()) {
      const std::string name = b_.graph().unique_name(prefix + weight->name());
      values->push_back(b_.graph().add_constant(name, weight->shared_initializer()));
    }
  }

  Value* joined(const Value& input, Value* found) {
    const TensorType &wanted = input.type(), &type = found->type();
    const bool right_kind = wanted.dtype == type.dtype || (is_float(wanted.dtype) && is_float(type.dtype));
    if (!right_kind || !right_shape(wanted, type)) {
      fail_as(ErrorCode::kLossModel, "[Loss] input '", input.name(), "' of the ", kind_, " '", loss_.name, "' is ",
              to_string(wanted), ", and the model's value of that name is ", to_string(type),
              ": change one of them, or rename the input",
              kind_ == std::string("teacher") ? "" : ", which makes it an input of the training model");
    }
    const Var value = b_.var(&found->graph() == &b_.graph() ? found : version_(found));
    b_.set_name("loss/" + input.name());
    return cast(value, wanted.dtype).value();
  }

  // Records what the symbols of `wanted` stand for.
  bool right_shape(const TensorType& wanted, const TensorType& type) {
    if (!wanted.dims || !type.dims) return true;
    if (wanted.rank() != type.rank()) return false;
    for (size_t i = 0; i < wanted.dims->size(); ++i) {
      const Dim &dim = (*wanted.dims)[i], &size = (*type.dims)[i];
      const Dim& expected = dim.symbol().empty() ? dim : sizes_.try_emplace(dim.symbol(), size).first->second;
      if (expected.known() && size.known() && expected != size) return false;
    }
    return true;
  }

  // A symbol of the loss that stands for nothing in the model is another one than the model's of that name.
  TensorType new_type(const Value& input) const {
    TensorType type = input.type();
    if (!type.dims) return type;
    for (size_t i = 0; i < type.dims->size(); ++i) {
      Dim& dim = (*type.dims)[i];
      const auto size = sizes_.find(dim.symbol());
      if (size != sizes_.end()) {
        dim = size->second;
      } else if (is_symbol_of_model(dim.symbol())) {
        dim = Dim(concat(input.name(), "_dim", i));
      }
    }
    return type;
  }

  bool is_symbol_of_model(const std::string& symbol) const {
    const auto has_symbol = [&](const Dim& d) { return d.symbol() == symbol; };
    return !symbol.empty() && std::ranges::any_of(b_.graph().parent()->inputs(), [&](const Value* input) {
      return input->has_rank() && std::ranges::any_of(*input->type().dims, has_symbol);
    });
  }

  [[noreturn]] void fail_without_prediction() const {
    fail_as(ErrorCode::kLossModel, "[Loss] the inputs of the loss model '", loss_.name, "' are ",
            names_of(loss_.model.graph->inputs()), ", and the model's outputs ",
            names_of(b_.graph().parent()->outputs()), ": give the input that is the prediction the name of an output");
  }

  static std::string names_of(const std::vector<Value*>& values) {
    std::string text;
    for (const Value* value : values) text += concat(text.empty() ? "'" : ", '", value->name(), "'");
    return text.empty() ? "none" : text;
  }

  Builder& b_;
  const LossModel& loss_;
  const std::function<Value*(Value*)>& version_;
  const char* kind_;
  std::unordered_map<std::string, Dim> sizes_;  // by the loss's symbols
};

// A size with a name, such as that of the batch, may be any; one without a name may turn out to be 1.
bool may_have_one_element(const TensorType& type) {
  return is_float(type.dtype) && (!type.dims || std::ranges::all_of(*type.dims, [](const Dim& d) {
           return d.known() ? d.value() == 1 : d.symbol().empty();
         }));
}

}  // namespace

bool is_loss_file(const std::string& loss) { return loss.ends_with(".onnx"); }

// Between opsets 21 and 26 operators are added, and take more element types: a node means the same in a later opset.
void join_opsets(Model* model, const LossModel& loss) {
  for (const auto& [domain, version] : loss.model.context->opsets) {
    int64_t& present = model->context->opsets[domain];
    present = std::max(present, version);
  }
  for (const auto& function : loss.model.context->functions) {
    if (model->context->find_function(function->domain(), function->name(), function->overload())) continue;
    model->context->functions.push_back(function);
  }
}

void add_teacher(Builder* b, const LossModel& teacher, const std::function<Value*(Value*)>& version) {
  const Graph& graph = *teacher.model.graph;
  const std::vector<Value*> arguments = LossArguments(b, teacher, version, "teacher").of_teacher();
  Graph& algorithm = b->graph();
  Node* const last = algorithm.last();
  std::vector<Value*> results;
  try {
    results = instantiate(graph, &algorithm, arguments, "teacher");
    for (Node* n = last ? last->next() : algorithm.first(); n; n = n->next()) infer_types(n);
  } catch (const Error& error) {
    fail_as(ErrorCode::kLossModel, "[Loss] the teacher '", teacher.name, "' does not fit the model: ", error.what());
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string name = kTeacherPrefix + graph.outputs()[i]->name();
    if (algorithm.find(name))
      fail_as(ErrorCode::kLossModel, "[Loss] the model and the teacher '", teacher.name, "' both have a value '", name,
              "'");
    Var result = b->var(results[i]);
    // An output that is an input, or another output, too, stays a value of its own.
    const bool own = results[i]->producer() && std::count(results.begin(), results.end(), results[i]) == 1;
    if (!own || &results[i]->graph() != &algorithm) result = b->op("Identity", {result});
    algorithm.rename(result.value(), name);
  }
}

Var add_loss_model(Builder* b, const LossModel& loss, const std::function<Value*(Value*)>& version) {
  const Graph& graph = *loss.model.graph;
  if (graph.outputs().size() != 1) {
    fail_as(ErrorCode::kLossModel, "[Loss] the loss model '", loss.name, "' has ", graph.outputs().size(),
            " outputs; its one output must be the loss: remove the others");
  }
  const std::vector<Value*> arguments = LossArguments(b, loss, version).values();
  Graph& algorithm = b->graph();
  Node* const last = algorithm.last();
  Value* result = nullptr;
  try {
    result = instantiate(graph, &algorithm, arguments, "loss").front();
    for (Node* n = last ? last->next() : algorithm.first(); n; n = n->next()) infer_types(n);
  } catch (const Error& error) {
    fail_as(ErrorCode::kLossModel, "[Loss] the loss model '", loss.name, "' does not fit the model: ", error.what());
  }
  if (!may_have_one_element(result->type())) {
    fail_as(ErrorCode::kLossModel, "[Loss] output '", graph.outputs().front()->name(), "' of the loss model '",
            loss.name, "' is ", to_string(result->type()),
            "; a loss is one float: end the model with a ReduceMean of all axes");
  }
  const Var value = b->var(result);
  b->set_name("loss/part");
  return result->has_rank() && value.rank() == 0 ? value : reshape(value, std::vector<int64_t>{});
}

}  // namespace onnx_train
