#include "onnx_passes/ir/graph.h"

#include <algorithm>

#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/internal_error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/shared_constants.h"

namespace onnx_train {

// ---- Context

namespace {

std::string function_key(std::string_view domain, std::string_view op, std::string_view overload) {
  return concat(op, '\n', domain, '\n', overload);
}

}  // namespace

void FunctionTable::push_back(Pointer function) {
  by_name_.emplace(function_key(function->domain(), function->name(), function->overload()), function.get());
  functions_.push_back(std::move(function));
}

void FunctionTable::erase_if(const std::function<bool(const Pointer&)>& condition) {
  std::vector<Pointer> all = std::move(functions_);
  functions_.clear();
  by_name_.clear();
  for (Pointer& function : all) {
    if (!condition(function)) push_back(std::move(function));
  }
}

const onnx::FunctionProto* FunctionTable::find(std::string_view domain, std::string_view op,
                                               std::string_view overload) const {
  if (by_name_.empty()) return nullptr;
  const auto found = by_name_.find(function_key(domain, op, overload));
  return found == by_name_.end() ? nullptr : found->second;
}

const onnx::FunctionProto* Context::find_function(std::string_view domain, std::string_view op,
                                                  std::string_view overload) const {
  return functions.find(domain, op, overload);
}

int64_t Context::opset(const std::string& domain) const {
  const auto found = opsets.find(domain);
  return found == opsets.end() ? 0 : found->second;
}

// ---- Graph

Graph::Graph(std::shared_ptr<Context> context, Graph* parent)
    : context_(std::move(context)), parent_(parent), shell_(std::make_unique<onnx::GraphProto>()) {}

Graph::~Graph() {
  // Values of a parent graph outlive this graph: removes our nodes from their lists of uses, readers first.
  for (Node* node = first_; node; node = node->next_) {
    node->subgraphs_.clear();
    for (int i = 0; parent_ && i < node->num_inputs(); ++i) {
      if (node->input(i) && node->input(i)->graph_ != this) node->set_input(i, nullptr);
    }
  }
  std::pmr::polymorphic_allocator<> pool(&context_->pool_);
  Node* next = nullptr;
  for (Node* node = first_; node; node = next) {
    next = node->next_;
    pool.delete_object(node);
  }
  for (const auto& [name, value] : values_) pool.delete_object(value);
}

const std::string& Graph::name() const { return shell_->name(); }

std::vector<Node*> Graph::nodes() const {
  std::vector<Node*> all;
  all.reserve(num_nodes_);
  for (Node* node = first_; node; node = node->next_) all.push_back(node);
  return all;
}

Value* Graph::find(const std::string& name) const {
  for (const Graph* graph = this; graph; graph = graph->parent_) {
    const auto found = graph->values_.find(name);
    if (found != graph->values_.end()) return found->second;
  }
  return nullptr;
}

std::string Graph::unique_name(const std::string& base) const {
  if (!base.empty() && !find(base)) return base;
  int& suffix = next_suffix_[base];
  while (true) {
    std::string name = concat(base, base.empty() ? "v" : "_", ++suffix);
    if (!find(name)) return name;
  }
}

Value* Graph::add_value(const std::string& name) {
  std::pmr::polymorphic_allocator<> pool(&context_->pool_);
  Value* value = new (pool.allocate_object<Value>()) Value(this, name, context_->values_made_++);
  if (values_.emplace(value->name_, value).second) return value;
  pool.delete_object(value);
  fail("graph '", this->name(), "' defines the value '", name, "' twice");
}

void Graph::delete_value(Value* value) {
  if (!value->uses_.empty())
    throw InternalError(
        concat("value '", value->name(), "' is removed while ", value->uses_[0].node->label(), " uses it"));
  values_.erase(value->name_);
  std::pmr::polymorphic_allocator<>(&context_->pool_).delete_object(value);
}

void Graph::link(Node* node, Node* before) {
  node->next_ = before;
  node->previous_ = before ? before->previous_ : last_;
  (node->previous_ ? node->previous_->next_ : first_) = node;
  (before ? before->previous_ : last_) = node;
}

void Graph::unlink(Node* node) {
  (node->previous_ ? node->previous_->next_ : first_) = node->next_;
  (node->next_ ? node->next_->previous_ : last_) = node->previous_;
}

void Graph::move(Node* node, Node* before) {
  if (node == before) return;
  unlink(node);
  link(node, before);
}

Node* Graph::add_node(const onnx::NodeProto& shell, const std::vector<Value*>& inputs,
                      const std::vector<std::string>& outputs, Node* before) {
  auto own = std::make_shared<onnx::NodeProto>(shell);
  own->clear_input();
  own->clear_output();
  return add_node(std::move(own), inputs, outputs, before);
}

Node* Graph::add_node(const Node& like, const std::vector<Value*>& inputs, const std::vector<std::string>& outputs,
                      Node* before) {
  return add_node(like.shell_, inputs, outputs, before);
}

Node* Graph::add_node(Node::Shell shell, const std::vector<Value*>& inputs, const std::vector<std::string>& outputs,
                      Node* before) {
  std::pmr::polymorphic_allocator<> pool(&context_->pool_);
  Node* node = new (pool.allocate_object<Node>()) Node(this, std::move(shell), context_->nodes_made_++);
  link(node, before);
  ++num_nodes_;
  for (size_t i = 0; i < inputs.size(); ++i) node->set_input(static_cast<int>(i), inputs[i]);
  node->outputs_.resize(outputs.size(), nullptr);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].empty()) node->add_output(static_cast<int>(i), outputs[i]);
  }
  return node;
}

Node* Graph::add_node(const std::string& op, const std::vector<Value*>& inputs, const std::vector<std::string>& outputs,
                      const std::string& domain, Node* before) {
  onnx::NodeProto shell;
  shell.set_op_type(op);
  if (!domain.empty()) shell.set_domain(domain);
  return add_node(shell, inputs, outputs, before);
}

Graph* Graph::add_subgraph(Node* node, const std::string& attribute) {
  node->subgraphs_.push_back({attribute, std::make_unique<Graph>(context_, this)});
  if (!node->has_attr(attribute)) {  // its place among the attributes, where a file has the graph
    onnx::AttributeProto place;
    place.set_name(attribute);
    place.set_type(onnx::AttributeProto::GRAPH);
    place.mutable_g();
    node->set_attr(place);
  }
  Graph* graph = node->subgraphs_.back().graph.get();
  graph->shell().set_name(attribute);
  return graph;
}

void Graph::remove(Node* node) {
  for (int i = 0; i < node->num_inputs(); ++i) node->set_input(i, nullptr);
  for (Value* output : node->outputs_) {
    if (output) delete_value(output);
  }
  unlink(node);
  --num_nodes_;
  std::pmr::polymorphic_allocator<>(&context_->pool_).delete_object(node);
}

void Graph::add_output(Value* value) {
  output_places_.emplace(value, outputs_.size());
  ++value->times_output_;
  outputs_.push_back(value);
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): a copy, which may be of outputs()
void Graph::set_outputs(std::vector<Value*> outputs) {
  for (Value* value : outputs_) --value->times_output_;
  outputs_.clear();
  output_places_.clear();
  for (Value* value : outputs) add_output(value);
}

Value* Graph::add_input(const std::string& name, TensorType type) {
  const auto found = values_.find(name);  // an initializer of the same name is the default of the input
  Value* value = found != values_.end() && found->second->is_initializer() ? found->second : add_value(name);
  value->set_type(std::move(type));
  inputs_.push_back(value);
  value->is_input_ = true;
  return value;
}

namespace {

// Searches from the end, so that removing values in reverse order takes constant time per value.
void erase_last(std::vector<Value*>* list, const Value* value) {
  const auto found = std::find(list->rbegin(), list->rend(), value);
  if (found != list->rend()) list->erase(std::prev(found.base()));
}

}  // namespace

void Graph::remove_input(Value* value) {
  erase_last(&inputs_, value);
  value->is_input_ = false;
  if (!value->is_initializer()) delete_value(value);
}

Value* Graph::add_initializer(const std::string& name, const Tensor& tensor) {
  return add_initializer(name, make_initializer(name, tensor));
}

Value* Graph::add_initializer(onnx::TensorProto tensor) {
  const std::string name = tensor.name();
  return add_initializer(name, std::make_shared<const onnx::TensorProto>(std::move(tensor)));
}

Value* Graph::add_initializer(const std::string& name, std::shared_ptr<const onnx::TensorProto> tensor) {
  const auto found = values_.find(name);  // an input of the same name gets it as its default
  Value* value = found != values_.end() && is_input(found->second) && !found->second->is_initializer()
                     ? found->second
                     : add_value(name);
  set_initializer(value, std::move(tensor));
  return value;
}

Value* Graph::add_constant(const std::string& name, const Tensor& tensor) {
  Value* value = add_initializer(name, tensor);
  value->is_constant_ = true;
  if (!is_shared_constant(*value)) return value;
  // Shared constants next to each other are in the order of their names: which of two the operands of an expression ask
  // for first depends on the compiler.
  for (auto at = initializers_.rbegin(), before = std::next(at); before != initializers_.rend(); at = before++) {
    if (!is_shared_constant(**before) || (*before)->name_ < value->name_) break;
    std::swap(*at, *before);
  }
  return value;
}

Value* Graph::add_constant(const std::string& name, std::shared_ptr<const onnx::TensorProto> tensor) {
  Value* value = add_initializer(name, std::move(tensor));
  value->is_constant_ = true;
  return value;
}

void Graph::set_initializer(Value* value, onnx::TensorProto tensor) {
  set_initializer(value, std::make_shared<const onnx::TensorProto>(std::move(tensor)));
}

void Graph::set_initializer(Value* value, std::shared_ptr<const onnx::TensorProto> tensor) {
  if (!value->initializer_) initializers_.push_back(value);
  value->initializer_ = std::move(tensor);
  value->is_constant_ = false;
  if (value->type_.dtype == DType::kUndefined) {
    const auto& dims = value->initializer_->dims();
    value->type_.dtype = static_cast<DType>(value->initializer_->data_type());
    value->type_.dims.emplace(dims.begin(), dims.end());
  }
}

void Graph::set_initializer(Value* value, const Tensor& tensor) {
  set_initializer(value, make_initializer(value->name(), tensor));
}

void Graph::remove_initializer(Value* value) {
  erase_last(&initializers_, value);
  if (value->is_input_) std::erase(inputs_, value);
  delete_value(value);
}

bool Graph::remove_unused_initializers() {
  std::vector<Value*> kept;
  kept.reserve(initializers_.size());
  for (Value* value : initializers_) {
    if (value->uses_.empty() && !is_input(value) && !is_output(value)) {
      delete_value(value);
    } else {
      kept.push_back(value);
    }
  }
  const bool changed = kept.size() < initializers_.size();
  initializers_ = std::move(kept);
  return changed;
}

void Graph::replace(Value* old, Value* with) {
  if (old == with) return;
  const std::vector<Use> uses = old->uses();
  for (const Use& use : uses) use.node->set_input(use.index, with);
  if (!is_output(old)) return;
  if (with->graph_ != this || !with->producer_ || is_output(with)) {
    onnx::NodeProto identity;
    identity.set_op_type("Identity");
    Node* after = old->producer_;
    Node* node = add_node(identity, {with}, {unique_name(old->name())}, after ? after->next() : nullptr);
    node->output()->set_type(with->type());
    with = node->output();
  }
  while (auto place = output_places_.extract(old)) {
    outputs_[place.mapped()] = with;
    place.key() = with;
    output_places_.insert(std::move(place));
    --old->times_output_;
    ++with->times_output_;
  }
  const std::string name = old->name();
  rename(old, unique_name(name + "_replaced"));
  rename(with, name);
  if (old->role_) with->role_ = std::move(old->role_);
}

void Graph::rename(Value* value, const std::string& name) {
  if (value->name_ == name) return;
  if (values_.contains(name))
    throw InternalError(concat("value '", value->name(), "' cannot be called '", name, "': the name is taken"));
  auto handle = values_.extract(value->name_);
  value->name_ = name;
  handle.key() = value->name_;
  values_.insert(std::move(handle));
}

void Graph::claim_name(Value* value, const std::string& name, size_t first_id) {
  if (value->name() == name) return;
  Value* taken = find(name);
  const bool makes_room =
      taken && taken->graph_ == this && taken->producer_ && taken->id_ >= first_id && !is_output(taken);
  if (makes_room) rename(taken, unique_name(name + "/part"));
  rename(value, unique_name(name));
}

}  // namespace onnx_train
