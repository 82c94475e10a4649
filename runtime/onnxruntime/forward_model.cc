#include "runtime/onnxruntime/forward_model.h"

#include <algorithm>
#include <map>
#include <set>

#include "onnx_passes/import/node_order.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/text/expression.h"
#include "runtime/onnxruntime/recovered_loss.h"

namespace onnx_train {
namespace {

constexpr const char* kMicrosoft = "com.microsoft";
constexpr const char* kBuffer = "_grad.accumulation.buffer";  // after the name of a parameter

Model graph_of(ModelMessage message) {
  expect_defined_names(message.proto.graph());
  sort_nodes(&message.proto);
  return from_message(std::move(message));
}

// Removes nodes that no output depends on, and the inputs that only these have read.
void prune(Graph* graph) {
  std::vector<Value*> read;
  for (Value* input : graph->inputs()) {
    if (!input->uses().empty()) read.push_back(input);
  }
  for (Node* node = graph->last(); node;) {
    Node* const before = node->previous();
    const auto is_wanted = [&](const Value* value) {
      return value && (!value->uses().empty() || graph->is_output(value));
    };
    if (std::none_of(node->outputs().begin(), node->outputs().end(), is_wanted)) graph->remove(node);
    node = before;
  }
  for (Value* input : read) {
    if (input->uses().empty() && !graph->is_output(input) && !input->is_initializer()) graph->remove_input(input);
  }
  graph->remove_unused_initializers();
}

void set_weights(const OrtCheckpoint& checkpoint, ModelMessage* message) {
  onnx::GraphProto& graph = *message->proto.mutable_graph();
  google::protobuf::RepeatedPtrField<onnx::ValueInfoProto> inputs;
  for (onnx::ValueInfoProto& input : *graph.mutable_input()) {
    auto found = checkpoint.trained.find(input.name());
    if (found == checkpoint.trained.end()) {
      found = checkpoint.frozen.find(input.name());
      if (found == checkpoint.frozen.end()) {
        inputs.Add()->Swap(&input);
        continue;
      }
    }
    const Tensor& value = found->second;
    const TensorType type = from_proto(input.type());
    if (type.dtype != value.dtype() || (type.has_rank() && type.is_static() && type.shape() != value.shape()))
      fail_as(ErrorCode::kFile, "the parameter '", input.name(), "' is ", to_string(type), " in the model and ",
              name(value.dtype()), to_string(value.shape()), " in the checkpoint; both come from one run");
    onnx::TensorProto* initializer = graph.add_initializer();
    initializer->set_name(input.name());
    initializer->set_data_type(static_cast<int32_t>(value.dtype()));
    for (const int64_t size : value.shape()) initializer->add_dims(size);
    put_beside(value, &message->contents, initializer);
  }
  graph.mutable_input()->Swap(&inputs);
}

// Operators that run in training mode, by the names of their first outputs.
std::set<std::string> in_training_mode(const onnx::GraphProto& training) {
  std::set<std::string> result;
  for (const onnx::NodeProto& node : training.node()) {
    if (node.output_size() == 0) continue;
    bool trains = node.op_type() == "BatchNormInternal" || node.op_type() == "BitmaskDropout";
    if (node.op_type() == "Dropout") trains = node.input_size() > 2 && !node.input(2).empty();
    for (const onnx::AttributeProto& attribute : node.attribute())
      trains = trains || (attribute.name() == "training_mode" && attribute.i() != 0);
    if (trains) result.insert(node.output(0));
  }
  return result;
}

// eval_model.onnx is made by taking training mode from the nodes, and leaves them the outputs that belong to it.
void set_training_modes(const std::set<std::string>& training, Graph* graph) {
  for (Node* node = graph->first(); node; node = node->next()) {
    const bool trains = node->output() && training.contains(node->output()->name());
    if (node->is("BatchNormalization")) {
      node->set_attr("training_mode", trains ? 1 : 0);
    } else if (node->is("Dropout") && trains && !node->input(2)) {
      const std::string name = graph->unique_name("training_mode");
      if (!node->input(1))
        node->set_input(1, graph->add_initializer(graph->unique_name("ratio"), Tensor::scalar(0.5f)));
      node->set_input(2, graph->add_initializer(name, Tensor::full(DType::kBool, {}, 1)));
    }
  }
}

// Without the outputs that nothing reads: in inference mode BatchNormalization has one.
void drop_unread_outputs(onnx::GraphProto* graph) {
  std::set<std::string> read;
  for (const auto& node : graph->node()) read.insert(node.input().begin(), node.input().end());
  for (const auto& output : graph->output()) read.insert(output.name());
  for (onnx::NodeProto& node : *graph->mutable_node()) {
    if (node.op_type() != "BatchNormalization" && node.op_type() != "Dropout") continue;
    while (node.output_size() > 1 && !read.contains(*node.output().rbegin())) node.mutable_output()->RemoveLast();
  }
}

// Operators that ONNX Runtime's training puts in the place of standard ones, as these, but for what the backward pass
// has read of them. It writes LayerNormalization into models whose opset does not have it.
void restore_operators(onnx::ModelProto* model) {
  constexpr int64_t kFirstLayerNormalization = 17;
  bool is_early = false;
  for (const auto& opset : model->opset_import())
    is_early = is_early || (opset.domain().empty() && opset.version() < kFirstLayerNormalization);
  for (onnx::NodeProto& node : *model->mutable_graph()->mutable_node()) {
    const bool norm = node.op_type() == "BatchNormInternal", dropout = node.op_type() == "BitmaskDropout";
    if (node.domain().empty() && node.op_type() == "LayerNormalization" && is_early) node.set_domain(kMicrosoft);
    if (node.domain() != kMicrosoft || (!norm && !dropout)) continue;
    node.set_op_type(norm ? "BatchNormalization" : "Dropout");
    node.clear_domain();
    const int most = norm ? 3 : 1;
    while (node.output_size() > most) node.mutable_output()->RemoveLast();
  }
}

}  // namespace

ForwardModel recover_forward(ModelMessage with_loss, const ModelMessage* training, const OrtCheckpoint& checkpoint) {
  if (with_loss.proto.graph().output_size() == 0) fail("the model has no output, and the first one is the loss");
  set_weights(checkpoint, &with_loss);
  drop_unread_outputs(with_loss.proto.mutable_graph());
  Model model = graph_of(std::move(with_loss));
  Graph* graph = model.graph.get();
  if (training) set_training_modes(in_training_mode(training->proto.graph()), graph);
  std::vector<Value*> outputs = graph->outputs();
  Value* const loss = outputs[0];
  ForwardModel result;
  if (const auto recovered = recover_loss(*loss)) {
    result.loss = recovered->expression;
    if (std::find(outputs.begin() + 1, outputs.end(), recovered->prediction) == outputs.end()) {
      outputs[0] = recovered->prediction;
    } else {
      outputs.erase(outputs.begin());
    }
    graph->set_outputs(std::move(outputs));
  } else {
    result.loss = "'";
    for (const char c : loss->name()) result.loss += c == '\'' ? "''" : std::string(1, c);
    result.loss += "'";
    result.is_recovered = false;
  }
  prune(graph);
  result.message = to_message(model);
  return result;
}

ModelMessage without_gradients(ModelMessage training) {
  Model model = graph_of(std::move(training));
  std::vector<Value*> outputs = model.graph->outputs();
  std::erase_if(outputs, [](const Value* output) {
    return output->producer() && output->producer()->is("InPlaceAccumulatorV2", kMicrosoft);
  });
  model.graph->set_outputs(std::move(outputs));
  prune(model.graph.get());
  ModelMessage message = to_message(model);
  restore_operators(&message.proto);
  return message;
}

std::vector<std::string> trained_names(const onnx::GraphProto& training) {
  std::vector<std::string> names;
  for (const onnx::ValueInfoProto& input : training.input()) {
    const std::string_view buffer = input.name();  // as the other program spells it
    if (buffer.ends_with(kBuffer)) names.emplace_back(buffer.substr(0, buffer.rfind(kBuffer)));
  }
  return names;
}

}  // namespace onnx_train
