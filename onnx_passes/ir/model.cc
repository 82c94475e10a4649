#include "onnx_passes/ir/model.h"

#include <onnx/defs/parser.h>
#include <onnx/defs/printer.h>

#include <algorithm>
#include <utility>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/message.h"

namespace onnx_train {

Model::Model()
    : context(std::make_shared<Context>()),
      graph(std::make_unique<Graph>(context)),
      shell_(std::make_unique<onnx::ModelProto>()) {}

Model::Model(Model&&) noexcept = default;

Model& Model::operator=(Model&& other) noexcept {
  // Algorithms read values of the inference graph, so they are destroyed first.
  entry_points.clear();
  graph = std::move(other.graph);
  entry_points = std::move(other.entry_points);
  context = std::move(other.context);
  shell_ = std::move(other.shell_);
  return *this;
}

Model::~Model() { entry_points.clear(); }

namespace {

Value* find_role(const std::vector<Value*>& values, std::string_view role) {
  const auto found = std::find_if(values.begin(), values.end(), [&](const Value* v) { return v->has_role(role); });
  return found == values.end() ? nullptr : *found;
}

}  // namespace

Value* EntryPoint::output(std::string_view role) const { return find_role(algorithm->outputs(), role); }
Value* EntryPoint::input(std::string_view role) const { return find_role(algorithm->inputs(), role); }

EntryPoint& Model::add_entry_point(const EntryName& name) {
  if (find_entry_point(name)) fail("the model already has an entry point '", name, "'");
  EntryPoint entry;
  entry.initialization = std::make_unique<Graph>(context);
  entry.algorithm = std::make_unique<Graph>(context, graph.get());
  entry.algorithm->shell().set_name(name.text());
  entry_points.push_back(std::move(entry));
  return entry_points.back();
}

EntryPoint* Model::find_entry_point(const EntryName& name) {
  return const_cast<EntryPoint*>(std::as_const(*this).find_entry_point(name));
}

const EntryPoint* Model::find_entry_point(const EntryName& name) const {
  for (const EntryPoint& entry : entry_points) {
    if (entry.algorithm->name() == name.text()) return &entry;
  }
  return nullptr;
}

const EntryPoint* Model::training_entry_point() const {
  const EntryPoint* step = find_entry_point(Entry::kStep);
  return step ? step : find_entry_point(Entry::kAccumulate);
}

std::string Model::unique_name(const std::string& base) const {
  const auto is_taken = [&](const std::string& name) {
    const auto has = [&](const EntryPoint& entry) { return entry.algorithm->find(name) != nullptr; };
    return graph->find(name) || std::any_of(entry_points.begin(), entry_points.end(), has);
  };
  std::string name = base;
  for (int suffix = 1; is_taken(name); ++suffix) name = concat(base, "_", suffix);
  return name;
}

std::string Model::metadata(const std::string& key) const {
  for (const auto& entry : shell_->metadata_props()) {
    if (entry.key() == key) return entry.value();
  }
  return "";
}

void Model::set_metadata(const std::string& key, const std::string& value) {
  for (auto& entry : *shell_->mutable_metadata_props()) {
    if (entry.key() == key) return entry.set_value(value);
  }
  auto* entry = shell_->add_metadata_props();
  entry->set_key(key);
  entry->set_value(value);
}

Model clone(const Model& model) { return from_message(to_message(model, /*all_types=*/true)); }

namespace {

void elide(onnx::TensorProto* tensor, int64_t max_elements) {
  int64_t count = 1;
  for (int64_t d : tensor->dims()) count *= d;
  if (count <= max_elements) return;
  tensor->clear_external_data();
  tensor->clear_raw_data();
  tensor->clear_float_data();
  tensor->clear_int64_data();
  tensor->clear_int32_data();
  tensor->clear_double_data();
  tensor->clear_uint64_data();
  tensor->set_data_location(
      onnx::TensorProto::EXTERNAL);  // the printer then writes the (empty) reference instead of the data
}

void elide(onnx::GraphProto* graph, int64_t max_elements) {
  for (auto& tensor : *graph->mutable_initializer()) elide(&tensor, max_elements);
  for (auto& node : *graph->mutable_node()) {
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_t()) elide(attribute.mutable_t(), max_elements);
      if (attribute.has_g()) elide(attribute.mutable_g(), max_elements);
    }
  }
}

}  // namespace

std::string to_text(const Model& model, int64_t max_elements) {
  ModelMessage message = to_message(model);
  elide(message.proto.mutable_graph(), max_elements);
  for (auto& entry : *message.proto.mutable_training_info()) {
    elide(entry.mutable_algorithm(), max_elements);
    elide(entry.mutable_initialization(), max_elements);
  }
  onnx::ModelProto proto = with_contents(std::move(message));
  const std::vector<onnx::TrainingInfoProto> entries(proto.training_info().begin(), proto.training_info().end());
  proto.clear_training_info();
  std::string text = onnx::ProtoToString(proto) + "\n";
  for (const auto& entry : entries) {
    text += "\nalgorithm " + onnx::ProtoToString(entry.algorithm()) + "\n";
    for (const auto& b : entry.update_binding()) text += concat("update ", b.key(), " <- ", b.value(), "\n");
    if (entry.initialization().node_size() == 0) continue;
    text += "initialization " + onnx::ProtoToString(entry.initialization()) + "\n";
    for (const auto& b : entry.initialization_binding())
      text += concat("initialize ", b.key(), " <- ", b.value(), "\n");
  }
  return text;
}

namespace {

// ONNX's parser calls itself for each graph in a graph and each type in a type.
void check_nesting(const std::string& text) {
  constexpr int kMostDeep = 100;
  int depth = 0;
  char end = 0;  // of the string or comment that this is in; 0: in none
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (end == '"' && c == '\\') {
      ++i;
    } else if (end != 0) {
      if (c == end) end = 0;
    } else if (c == '"' || c == '#') {
      end = c == '"' ? '"' : '\n';
    } else if (c == '(' || c == '[' || c == '{' || c == '<') {
      if (++depth > kMostDeep) fail("ONNX text: brackets are nested more than ", kMostDeep, " deep");
    } else if (c == ')' || c == ']' || c == '}' || (c == '>' && (i == 0 || text[i - 1] != '='))) {
      depth = std::max(depth - 1, 0);
    }
  }
}

std::string in_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

Model from_text(const std::string& text) {
  check_nesting(text);
  onnx::ModelProto proto;
  try {
    onnx::OnnxParser parser(text);
    const auto status = parser.Parse(proto);
    if (!status.IsOK()) fail("ONNX text: ", status.ErrorMessage());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // of numbers that no type holds
    fail("ONNX text: ", in_one_line(error.what()));
  }
  return from_proto(std::move(proto));
}

}  // namespace onnx_train
