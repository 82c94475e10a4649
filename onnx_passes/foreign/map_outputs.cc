#include "onnx_passes/foreign/map_outputs.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/liveness.h"

namespace onnx_train {
namespace {

// The output's name follows. The value: the attribute of ZipMap that holds the labels, then a label a line.
constexpr std::string_view kMaps = "onnx_train.maps.";
constexpr const char* kIntegers = "classlabels_int64s";
constexpr const char* kTexts = "classlabels_strings";

// Only the file's declaration tells what an output is that is no tensor.
const onnx::TypeProto& declared_type(const Graph& graph, const Value& output) {
  for (const auto& info : graph.shell().output()) {
    if (info.name() == output.name()) return info.type();
  }
  return onnx::TypeProto::default_instance();
}

bool is_tensor_of_numbers(const Graph& graph, const Value& output) {
  const onnx::TypeProto& type = declared_type(graph, output);
  if (type.value_case() == onnx::TypeProto::VALUE_NOT_SET) return true;
  return type.has_tensor_type() && type.tensor_type().elem_type() != onnx::TensorProto::STRING;
}

std::vector<std::string> labels_of(const Node& map) {
  std::vector<std::string> labels;
  for (const int64_t label : map.attr(kIntegers, std::vector<int64_t>())) labels.push_back(std::to_string(label));
  if (const auto* names = map.find_attr(kTexts))
    labels.insert(labels.end(), names->strings().begin(), names->strings().end());
  return labels;
}

// A label as a line of the record: '\\' and line breaks in it are written as "\\\\" and "\\n".
std::string escaped(const std::string& label) {
  std::string text;
  for (const char c : label) text += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
  return text;
}

std::string unescaped(const std::string& text) {
  std::string label;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '\\' && i + 1 < text.size();
    label += !is_escape ? text[i] : text[++i] == 'n' ? '\n' : text[i];
  }
  return label;
}

// An output that is maps becomes the tensor that they are made of.
Finding take_tensor(Model* model, Node* map) {
  Graph& graph = *model->graph;
  const std::string name = map->output()->name();
  const std::vector<std::string> labels = labels_of(*map);
  std::string record = concat(map->has_attr(kTexts) ? kTexts : kIntegers, "\n");
  for (const std::string& label : labels) record += escaped(label) + "\n";
  model->set_metadata(std::string(kMaps) + name, record);
  graph.rename(map->output(), graph.unique_name(name + "/maps"));
  Node* tensor = graph.add_node("Identity", {map->input(0)}, {name}, "", map);
  graph.replace(map->output(), tensor->output());
  if (tensor->output()->name() != name) graph.rename(tensor->output(), name);
  graph.remove(map);
  for (auto& info : *graph.shell().mutable_output()) {
    if (info.name() == name) info.clear_type();
  }
  constexpr size_t kShown = 4;
  const std::string classes = first_few(labels, kShown, [](const std::string& label) { return label; });
  return {name, "maps from classes to numbers, which have no gradient",
          concat("a tensor here, with a column for each of the classes ", classes, "; export writes maps again")};
}

void leave_out_others(Graph* graph, std::vector<Finding>* findings) {
  std::vector<Value*> kept;
  for (Value* output : graph->outputs()) {
    if (is_tensor_of_numbers(*graph, *output)) kept.push_back(output);
  }
  if (kept.empty() || kept.size() == graph->outputs().size()) return;
  for (const Value* output : graph->outputs()) {
    if (is_tensor_of_numbers(*graph, *output)) continue;
    findings->push_back({output->name(), "no tensor of numbers",
                         "no output any more; the others are, and what export writes has them alone"});
  }
  graph->set_outputs(kept);
}

// What follows reads the declarations of outputs by their positions.
void order_declarations(Graph* graph) {
  const auto declared = graph->shell().output();
  graph->shell().clear_output();
  for (const Value* output : graph->outputs()) {
    onnx::ValueInfoProto* info = graph->shell().add_output();
    for (const auto& known : declared) {
      if (known.name() == output->name()) *info = known;
    }
    info->set_name(output->name());
  }
}

bool is_supported(const Node& node) {
  const ForeignRow* row = find_foreign(node);
  return is_known_operator(node) || (row && row->rewrite);
}

// Removes unknown operators that no output needs, and what reads their results.
void remove_unknown(Graph* graph) {
  Liveness live;
  for (const Value* output : graph->outputs()) live.need(output);
  live.trace(*graph);
  Marks<Node> gone;
  bool any = false;
  for (const Node* node = graph->first(); node; node = node->next()) {
    if (live.runs(node)) continue;
    bool reads_gone = false;
    for_each_input(*node,
                   [&](const Value* v) { reads_gone = reads_gone || (v->producer() && gone.contains(v->producer())); });
    if (is_supported(*node) && !reads_gone) continue;
    gone.insert(node);
    any = true;
  }
  if (!any) return;
  std::vector<Value*> read;
  for (Node *node = graph->last(), *previous = nullptr; node; node = previous) {
    previous = node->previous();
    if (!gone.contains(node)) continue;
    for (Value* input : node->inputs()) {
      if (input && graph->is_input(input) && !input->is_initializer()) read.push_back(input);
    }
    graph->remove(node);
  }
  std::sort(read.begin(), read.end());
  read.erase(std::unique(read.begin(), read.end()), read.end());
  for (Value* input : read) {
    if (input->uses().empty() && !graph->is_output(input)) graph->remove_input(input);
  }
}

// The attribute of a ZipMap; one without values where the labels are none.
onnx::AttributeProto attribute_of(const std::string& name, const std::vector<std::string>& labels) {
  onnx::AttributeProto attribute;
  attribute.set_name(name);
  attribute.set_type(name == kTexts ? onnx::AttributeProto::STRINGS : onnx::AttributeProto::INTS);
  for (const std::string& label : labels) {
    if (name == kTexts) {
      attribute.add_strings(label);
      continue;
    }
    char* end = nullptr;
    const int64_t number = std::strtoll(label.c_str(), &end, 10);
    if (label.empty() || *end != 0) return attribute_of(name, {});
    attribute.add_ints(number);
  }
  return attribute;
}

// The declaration of an output that is a list of maps.
void declare_maps(Graph* graph, const std::string& output, int32_t key_type) {
  auto* infos = graph->shell().mutable_output();
  onnx::ValueInfoProto* info = nullptr;
  for (auto& known : *infos) info = known.name() == output ? &known : info;
  if (!info) (info = infos->Add())->set_name(output);
  auto* map = info->mutable_type()->mutable_sequence_type()->mutable_elem_type()->mutable_map_type();
  map->set_key_type(key_type);
  map->mutable_value_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
}

// Nothing where the output has another number of classes by now, or where the record, from a file, is none.
void make_maps(Model* model, const std::string& name, const std::string& attribute,
               const std::vector<std::string>& labels) {
  Graph& graph = *model->graph;
  Value* tensor = graph.find(name);
  const bool is_matrix = tensor && graph.is_output(tensor) && tensor->has_rank() && tensor->rank() == 2;
  if (!is_matrix || tensor->dtype() != DType::kFloat || (attribute != kTexts && attribute != kIntegers)) return;
  const Dim columns = tensor->type().dims->back();
  const onnx::AttributeProto made = attribute_of(attribute, labels);
  if (made.ints_size() + made.strings_size() == 0) return;
  if (columns.known() && columns != Dim(static_cast<int64_t>(labels.size()))) return;
  std::vector<Value*> outputs = graph.outputs();
  graph.rename(tensor, graph.unique_name(name + "/tensor"));
  Node* map = graph.add_node("ZipMap", {tensor}, {name}, kMl);
  map->set_attr(made);
  std::replace(outputs.begin(), outputs.end(), tensor, map->output());
  graph.set_outputs(outputs);
  declare_maps(&graph, name, attribute == kTexts ? onnx::TensorProto::STRING : onnx::TensorProto::INT64);
  model->context->opsets.try_emplace(kMl, 1);
}

}  // namespace

std::vector<Finding> choose_outputs(Model* model, const std::vector<std::string>& cut) {
  Graph* graph = model->graph.get();
  std::vector<Finding> findings;
  std::vector<Value*> ends;
  for (const std::string& name : cut) {
    Value* value = graph->find(name);
    const bool is_new = value && std::find(ends.begin(), ends.end(), value) == ends.end();
    if (is_new && value->producer()) ends.push_back(value);
  }
  const std::vector<Value*> before = graph->outputs();
  if (!cut.empty() && ends.size() == cut.size()) graph->set_outputs(ends);
  std::vector<Node*> maps;  // each once: a file may list an output twice
  for (const Value* output : graph->outputs()) {
    Node* node = output->producer();
    const bool is_map = node && node->is("ZipMap", kMl) && node->input(0);
    if (is_map && std::find(maps.begin(), maps.end(), node) == maps.end()) maps.push_back(node);
  }
  for (Node* map : maps) findings.push_back(take_tensor(model, map));
  leave_out_others(graph, &findings);
  if (graph->outputs() != before) {
    order_declarations(graph);
    remove_unknown(graph);
  }
  return findings;
}

void restore_maps(Model* inference, const Model& training) {
  for (const auto& entry : training.shell().metadata_props()) {
    if (!entry.key().starts_with(kMaps)) continue;
    std::istringstream text(entry.value());
    std::string attribute;
    std::vector<std::string> labels;
    std::getline(text, attribute);
    for (std::string label; std::getline(text, label);) labels.push_back(unescaped(label));
    make_maps(inference, entry.key().substr(kMaps.size()), attribute, labels);
  }
}

}  // namespace onnx_train
