#include "onnx_passes/ir/graph.h"
#include "onnx_passes/ir/internal_error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {

Node::Node(Graph* graph, Shell shell, size_t id)
    : graph_(graph),
      op_(graph->context_->intern(shell->op_type())),
      domain_(graph->context_->intern(shell->domain())),
      id_(id),
      shell_(std::move(shell)) {}
Node::~Node() = default;

onnx::NodeProto& Node::mutable_shell() {
  if (shell_.use_count() > 1) shell_ = std::make_shared<onnx::NodeProto>(*shell_);
  return *shell_;
}

const std::string& Node::name() const { return shell_->name(); }
const std::string& Node::overload() const { return shell_->overload(); }

void Node::set_op(const std::string& op, const std::string& domain) {
  op_ = graph_->context_->intern(op);
  domain_ = graph_->context_->intern(domain);
  mutable_shell().set_op_type(op);
  if (domain.empty()) {
    mutable_shell().clear_domain();
  } else {
    mutable_shell().set_domain(domain);
  }
}

std::string Node::label() const {
  std::string name = shell_->name();
  for (size_t i = 0; name.empty() && i < outputs_.size(); ++i) {
    if (outputs_[i]) name = outputs_[i]->name();
  }
  return concat("node '", name, "' (", domain().empty() ? "" : domain() + ".", op(), ")");
}

void Node::set_input(int i, Value* value) {
  const auto index = static_cast<size_t>(i);
  if (index >= inputs_.size()) {
    inputs_.resize(index + 1, nullptr);
    use_places_.resize(index + 1, 0);
  }
  if (Value* old = inputs_[index]) {
    auto& uses = old->uses_;
    const size_t place = use_places_[index];
    const Use moved = uses.back();
    uses[place] = moved;
    moved.node->use_places_[static_cast<size_t>(moved.index)] = place;
    uses.pop_back();
  }
  inputs_[index] = value;
  if (!value) return;
  use_places_[index] = value->uses_.size();
  value->uses_.push_back({this, i});
}

Value* Node::add_output(int i, const std::string& name) {
  const auto index = static_cast<size_t>(i);
  if (index >= outputs_.size()) outputs_.resize(index + 1, nullptr);
  if (outputs_[index]) throw InternalError(concat(label(), " already has output ", i));
  Value* value = graph_->add_value(name);
  value->producer_ = this;
  value->output_index_ = i;
  outputs_[index] = value;
  return value;
}

void Node::take_output(int i, Value* value) {
  value->producer_->outputs_[static_cast<size_t>(value->output_index_)] = nullptr;
  const auto index = static_cast<size_t>(i);
  if (index >= outputs_.size()) outputs_.resize(index + 1, nullptr);
  value->producer_ = this;
  value->output_index_ = i;
  outputs_[index] = value;
}

// ---- Attributes

const onnx::AttributeProto* Node::find_attr(const std::string& name) const {
  for (const auto& attribute : shell_->attribute()) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

bool Node::has_attr(const std::string& name) const { return find_attr(name) != nullptr; }

namespace {

using Kind = onnx::AttributeProto;

const onnx::AttributeProto* typed(const Node& node, const std::string& name, Kind::AttributeType type) {
  const auto* attribute = node.find_attr(name);
  if (attribute && attribute->type() != type) {
    fail(node.label(), ": attribute '", name, "' is ", Kind::AttributeType_Name(attribute->type()), ", not ",
         Kind::AttributeType_Name(type));
  }
  return attribute;
}

onnx::AttributeProto* fresh(onnx::NodeProto& shell, const std::string& name, Kind::AttributeType type) {
  for (auto& attribute : *shell.mutable_attribute()) {
    if (attribute.name() != name) continue;
    attribute.Clear();
    attribute.set_name(name);
    attribute.set_type(type);
    return &attribute;
  }
  auto* attribute = shell.add_attribute();
  attribute->set_name(name);
  attribute->set_type(type);
  return attribute;
}

}  // namespace

int64_t Node::attr(const std::string& name, int64_t otherwise) const {
  const auto* a = typed(*this, name, Kind::INT);
  return a ? a->i() : otherwise;
}

float Node::attr(const std::string& name, float otherwise) const {
  const auto* a = typed(*this, name, Kind::FLOAT);
  return a ? a->f() : otherwise;
}

std::string Node::attr(const std::string& name, const char* otherwise) const {
  const auto* a = typed(*this, name, Kind::STRING);
  return a ? a->s() : otherwise;
}

std::vector<int64_t> Node::attr(const std::string& name, const std::vector<int64_t>& otherwise) const {
  const auto* a = typed(*this, name, Kind::INTS);
  return a ? std::vector<int64_t>(a->ints().begin(), a->ints().end()) : otherwise;
}

std::vector<float> Node::attr(const std::string& name, const std::vector<float>& otherwise) const {
  const auto* a = typed(*this, name, Kind::FLOATS);
  return a ? std::vector<float>(a->floats().begin(), a->floats().end()) : otherwise;
}

Graph* Node::subgraph(std::string_view attribute) const {
  for (const Subgraph& subgraph : subgraphs_) {
    if (subgraph.attribute == attribute) return subgraph.graph.get();
  }
  return nullptr;
}

Tensor Node::attr_tensor(const std::string& name) const {
  const auto* a = typed(*this, name, Kind::TENSOR);
  return a ? from_proto(a->t()) : Tensor();
}

void Node::set_attr(const onnx::AttributeProto& attribute) {
  *fresh(mutable_shell(), attribute.name(), attribute.type()) = attribute;
}
void Node::set_attr(const std::string& name, int64_t value) { fresh(mutable_shell(), name, Kind::INT)->set_i(value); }
void Node::set_attr(const std::string& name, float value) { fresh(mutable_shell(), name, Kind::FLOAT)->set_f(value); }
void Node::set_attr(const std::string& name, const std::string& value) {
  fresh(mutable_shell(), name, Kind::STRING)->set_s(value);
}
void Node::set_attr(const std::string& name, const std::vector<int64_t>& value) {
  auto* a = fresh(mutable_shell(), name, Kind::INTS);
  a->mutable_ints()->Add(value.begin(), value.end());
}
void Node::set_attr(const std::string& name, const Tensor& value) {
  to_proto(value, "", fresh(mutable_shell(), name, Kind::TENSOR)->mutable_t());
}

void Node::remove_attr(const std::string& name) {
  auto* attributes = mutable_shell().mutable_attribute();
  for (int i = 0; i < attributes->size(); ++i) {
    if (attributes->Get(i).name() == name) {
      attributes->DeleteSubrange(i, 1);
      return;
    }
  }
}

}  // namespace onnx_train
