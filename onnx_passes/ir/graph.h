// The intermediate representation: an ONNX graph with use lists.
//
//   Graph   nodes in topological order, values by name, inputs, outputs. Owns its nodes and values.
//   Node    one operator; its inputs and outputs are values, its attributes stay protobuf messages.
//   Value   one tensor: a name, a type, one producer (none for inputs and initializers), a list of uses.
//
// Conversion from and to protobuf is lossless (model.h). A graph may have a parent: the graph around an If's branch,
// or, for the algorithm of a training model, the inference graph whose values it reads by name. Not thread-safe: one
// thread at a time may use a Model, which owns all its graphs. Functions throw Error for names and attributes that do
// not fit.
#pragma once

#include <functional>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "onnx_passes/ir/protobuf.h"
#include "onnx_passes/ir/tensor.h"
#include "onnx_passes/ir/types.h"

namespace onnx_train {

class Graph;
class Node;

struct Use {
  Node* node;
  int index;  // input number
};

// The role of a value in training, independent of its name (roles.h). Files store it as metadata of the value's tensor
// or declaration.
struct ValueRole {
  std::string name;  // "loss", "learning_rate", "exp_avg", "next"
  std::string of;    // the value it belongs to: the weight of a moment, the state of a next value; mostly ""
};

class Value {
 public:
  const std::string& name() const { return name_; }
  Graph& graph() const { return *graph_; }
  Node* producer() const { return producer_; }
  int output_index() const { return output_index_; }

  const TensorType& type() const { return type_; }
  void set_type(TensorType type) { type_ = std::move(type); }
  DType dtype() const { return type_.dtype; }
  bool has_rank() const { return type_.has_rank(); }
  int64_t rank() const { return type_.rank(); }  // requires has_rank()

  // The node inputs that read this value, in this graph and in graphs that are nested in it or follow it.
  const std::vector<Use>& uses() const { return uses_; }

  // A number that no other value of the model has or had, counted from 0. Tables by value are vectors (tables.h).
  size_t id() const { return id_; }

  // Null unless the value is an initializer. Its data may be in an external file until importing loads it. Graphs may
  // share the message, so its name may differ from the value's.
  const onnx::TensorProto* initializer() const { return initializer_.get(); }
  const std::shared_ptr<const onnx::TensorProto>& shared_initializer() const { return initializer_; }
  bool is_initializer() const { return initializer_ != nullptr; }
  // Whether this is an initializer that a Builder made for a constant, or that replaces one in a flattened entry point.
  // It is never trained or changed, so formulas share it.
  bool is_constant() const { return is_constant_; }

  // The known elements of an integer tensor of rank 0 to 2, in row-major order. Shape inference propagates them through
  // Shape, Gather, Concat and similar operators.
  const std::optional<Dims>& elements() const { return elements_; }
  void set_elements(std::optional<Dims> elements) { elements_ = std::move(elements); }

  // Mostly null. Only inputs, outputs and initializers may have a role, because files cannot store others.
  const ValueRole* role() const { return role_.get(); }
  bool has_role(std::string_view name) const { return role_ && role_->name == name; }
  void set_role(ValueRole role) { role_ = std::make_shared<const ValueRole>(std::move(role)); }

 private:
  friend class Graph;
  friend class Node;
  Value(Graph* graph, std::string_view name, size_t id) : graph_(graph), id_(id), name_(name) {}

  Graph* graph_;
  size_t id_;
  Node* producer_ = nullptr;
  int output_index_ = 0;
  bool is_input_ = false;
  bool is_constant_ = false;
  int times_output_ = 0;  // of this graph and others
  std::vector<Use> uses_;
  TensorType type_;
  std::string name_;
  std::shared_ptr<const onnx::TensorProto> initializer_;
  std::optional<Dims> elements_;
  std::shared_ptr<const ValueRole> role_;
};

class Node {
 public:
  ~Node();
  const std::string& op() const { return *op_; }          // "MatMul"
  const std::string& domain() const { return *domain_; }  // "" for ONNX's own
  void set_op(const std::string& op, const std::string& domain = "");
  const std::string& name() const;
  const std::string& overload() const;
  bool is(std::string_view op, std::string_view domain = "") const { return *op_ == op && *domain_ == domain; }
  // "node 'h3' (Gather)", or by its first output if it has no name; used in errors.
  std::string label() const;
  Graph& graph() const { return *graph_; }
  // A number that no other node of the model has or had, counted from 0. Tables by node are vectors (tables.h).
  size_t id() const { return id_; }

  // Absent inputs are null.
  const std::vector<Value*>& inputs() const { return inputs_; }
  int num_inputs() const { return static_cast<int>(inputs_.size()); }
  Value* input(int i) const { return i < num_inputs() ? inputs_[static_cast<size_t>(i)] : nullptr; }
  void set_input(int i, Value* value);  // extends the list if necessary; null removes the input
  // Absent outputs are null.
  const std::vector<Value*>& outputs() const { return outputs_; }
  int num_outputs() const { return static_cast<int>(outputs_.size()); }
  Value* output(int i = 0) const { return i < num_outputs() ? outputs_[static_cast<size_t>(i)] : nullptr; }
  // Adds output i, which must be absent.
  Value* add_output(int i, const std::string& name);
  // Moves `value`, an output of another node of the graph, to output i, which must be absent.
  void take_output(int i, Value* value);

  // Attributes. The getters return `otherwise` if there is no such attribute, and throw Error if it has another type.
  bool has_attr(const std::string& name) const;
  int64_t attr(const std::string& name, int64_t otherwise) const;
  int64_t attr(const std::string& name, int otherwise) const { return attr(name, static_cast<int64_t>(otherwise)); }
  float attr(const std::string& name, float otherwise) const;
  std::string attr(const std::string& name, const char* otherwise) const;
  std::vector<int64_t> attr(const std::string& name, const std::vector<int64_t>& otherwise) const;
  std::vector<float> attr(const std::string& name, const std::vector<float>& otherwise) const;
  Tensor attr_tensor(const std::string& name) const;  // empty if absent
  const onnx::AttributeProto* find_attr(const std::string& name) const;
  void set_attr(const onnx::AttributeProto& attribute);
  void set_attr(const std::string& name, int64_t value);
  void set_attr(const std::string& name, int value) { set_attr(name, static_cast<int64_t>(value)); }
  void set_attr(const std::string& name, float value);
  void set_attr(const std::string& name, const std::string& value);
  void set_attr(const std::string& name, const std::vector<int64_t>& value);
  void set_attr(const std::string& name, const Tensor& value);
  void remove_attr(const std::string& name);

  // The graphs of the node's attributes (If's branches, a loop's body), with the names of the attributes.
  struct Subgraph {
    std::string attribute;
    std::unique_ptr<Graph> graph;
  };
  const std::vector<Subgraph>& subgraphs() const { return subgraphs_; }
  Graph* subgraph(std::string_view attribute) const;  // null if there is none

  // Neighbours in the graph's list; null at the ends.
  Node* next() const { return next_; }
  Node* previous() const { return previous_; }

  // The message without inputs, outputs and subgraphs; it holds everything that is not an edge. Only set_op changes
  // operator and domain.
  const onnx::NodeProto& shell() const { return *shell_; }
  onnx::NodeProto& mutable_shell();

 private:
  friend class Graph;
  using Shell = std::shared_ptr<onnx::NodeProto>;
  Node(Graph* graph, Shell shell, size_t id);

  Graph* graph_;
  Node* previous_ = nullptr;
  Node* next_ = nullptr;
  const std::string* op_;  // owned by the context: traversals read little else
  const std::string* domain_;
  size_t id_;
  std::vector<Value*> inputs_;
  std::vector<size_t> use_places_;  // for each input: the index of this node in the value's list of uses
  std::vector<Value*> outputs_;
  Shell shell_;  // shared between graphs until one of them changes it
  std::vector<Subgraph> subgraphs_;
};

// The functions of a model, in order, with constant-time lookup by name: lowering adds one per fused node.
class FunctionTable {
 public:
  using Pointer = std::shared_ptr<onnx::FunctionProto>;

  // The function must have its name; of two with one name the first is found.
  void push_back(Pointer function);
  void erase_if(const std::function<bool(const Pointer&)>& condition);
  const onnx::FunctionProto* find(std::string_view domain, std::string_view op, std::string_view overload) const;

  size_t size() const { return functions_.size(); }
  bool empty() const { return functions_.empty(); }
  std::vector<Pointer>::const_iterator begin() const { return functions_.begin(); }
  std::vector<Pointer>::const_iterator end() const { return functions_.end(); }

 private:
  std::vector<Pointer> functions_;
  std::unordered_map<std::string, const onnx::FunctionProto*> by_name_;
};

// Data that all graphs of one model share.
class Context {
 public:
  std::unordered_map<std::string, int64_t> opsets;  // domain ("" for ONNX's own) -> version
  FunctionTable functions;
  const onnx::FunctionProto* find_function(std::string_view domain, std::string_view op,
                                           std::string_view overload) const;
  int64_t opset(const std::string& domain = "") const;  // 0 if not imported

 private:
  friend class Graph;
  friend class Node;
  // Returns one shared string for equal operator names and domains.
  const std::string* intern(const std::string& name) { return &*names_.insert(name).first; }

  std::unordered_set<std::string> names_;
  size_t nodes_made_ = 0, values_made_ = 0;
  // Nodes and values are allocated close together, which makes traversals fast.
  std::pmr::unsynchronized_pool_resource pool_;
};

class Graph {
 public:
  explicit Graph(std::shared_ptr<Context> context, Graph* parent = nullptr);
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  const std::string& name() const;
  Graph* parent() const { return parent_; }
  Context& context() const { return *context_; }
  const std::shared_ptr<Context>& shared_context() const { return context_; }

  // Nodes in topological order: for (Node* n = g.first(); n; n = n->next()). Nodes may be added and removed during the
  // traversal.
  Node* first() const { return first_; }
  Node* last() const { return last_; }
  size_t num_nodes() const { return num_nodes_; }
  std::vector<Node*> nodes() const;

  // The value of this name here or in a parent; null if there is none.
  Value* find(const std::string& name) const;
  // A name that no value here or in a parent has: `base`, or base_1, base_2, ...
  std::string unique_name(const std::string& base) const;

  // Adds a node before `before` (at the end if null). Outputs are new values with the given names; "" is an absent
  // output. Throws Error if a name is in use.
  Node* add_node(const std::string& op, const std::vector<Value*>& inputs, const std::vector<std::string>& outputs,
                 const std::string& domain = "", Node* before = nullptr);
  // The same, copying attributes, name and doc from `shell`, but not its subgraphs.
  Node* add_node(const onnx::NodeProto& shell, const std::vector<Value*>& inputs,
                 const std::vector<std::string>& outputs, Node* before = nullptr);
  // The same, copying the rest of the node from `like`, which may belong to another graph.
  Node* add_node(const Node& like, const std::vector<Value*>& inputs, const std::vector<std::string>& outputs,
                 Node* before = nullptr);
  Graph* add_subgraph(Node* node, const std::string& attribute);
  // Moves a node before `before` (to the end if null). The caller keeps the order topological.
  void move(Node* node, Node* before);
  // Removes a node, none of whose outputs is used or an output of the graph, together with its outputs.
  void remove(Node* node);

  const std::vector<Value*>& inputs() const { return inputs_; }
  Value* add_input(const std::string& name, TensorType type);
  void remove_input(Value* value);

  const std::vector<Value*>& outputs() const { return outputs_; }
  void add_output(Value* value);
  void set_outputs(std::vector<Value*> outputs);
  bool is_output(const Value* value) const { return value->times_output_ > 0 && output_places_.contains(value); }
  bool is_input(const Value* value) const { return value->is_input_ && value->graph_ == this; }

  const std::vector<Value*>& initializers() const { return initializers_; }
  Value* add_initializer(const std::string& name, const Tensor& tensor);
  Value* add_initializer(onnx::TensorProto tensor);
  // An initializer whose contents another graph shares; nothing is copied.
  Value* add_initializer(const std::string& name, std::shared_ptr<const onnx::TensorProto> tensor);
  // The same for a value with is_constant().
  Value* add_constant(const std::string& name, const Tensor& tensor);
  Value* add_constant(const std::string& name, std::shared_ptr<const onnx::TensorProto> tensor);
  // Makes `value` (an input or a value without producer) an initializer, or replaces its data; keeps its position.
  void set_initializer(Value* value, onnx::TensorProto tensor);
  void set_initializer(Value* value, const Tensor& tensor);
  void set_initializer(Value* value, std::shared_ptr<const onnx::TensorProto> tensor);
  // Removes an unused initializer, and the input of the same name if there is one.
  void remove_initializer(Value* value);
  // Removes every initializer that is not used and is neither input nor output; false if there is none.
  bool remove_unused_initializers();

  // Replaces every use of `old` by `with`. If `old` is an output of its graph, `with` takes over its name, role and
  // position. If `with` is an input, an initializer or another output, it keeps its name and an Identity is inserted
  // instead.
  void replace(Value* old, Value* with);
  void rename(Value* value, const std::string& name);
  // Renames a value that a pass has added: to `name`, or to name_1, ... if a value of the model has that name. A later
  // intermediate value of this graph, with an id of at least `first_id`, is renamed to make room.
  void claim_name(Value* value, const std::string& name, size_t first_id = 0);

  // The message without nodes and initializers; `value_info`, `input` and `output` keep the entries' documentation.
  const onnx::GraphProto& shell() const { return *shell_; }
  onnx::GraphProto& shell() { return *shell_; }

 private:
  friend class Node;
  Node* add_node(Node::Shell shell, const std::vector<Value*>& inputs, const std::vector<std::string>& outputs,
                 Node* before);
  Value* add_value(const std::string& name);
  void delete_value(Value* value);
  void link(Node* node, Node* before);
  void unlink(Node* node);

  std::shared_ptr<Context> context_;
  Graph* parent_;
  std::unique_ptr<onnx::GraphProto> shell_;
  Node* first_ = nullptr;
  Node* last_ = nullptr;
  size_t num_nodes_ = 0;
  std::unordered_map<std::string_view, Value*> values_;  // by their own names
  std::vector<Value*> inputs_, outputs_, initializers_;
  std::unordered_multimap<const Value*, size_t> output_places_;  // position in the list of outputs
  mutable std::unordered_map<std::string, int> next_suffix_;
};

}  // namespace onnx_train
