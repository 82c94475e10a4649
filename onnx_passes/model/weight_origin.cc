#include "onnx_passes/model/weight_origin.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

constexpr const char* kOrigin = "onnx_train.origin";
constexpr const char* kOriginalNames = "onnx_train.original_names";  // one a line
constexpr const char* kTiedNames = "onnx_train.tied_names";          // one a line
constexpr const char* kRepeated = "onnx_train.repeated";
constexpr const char* kParameter = "parameter";
constexpr const char* kConstant = "constant";
constexpr const char* kNamed = "named";
constexpr const char* kComputed = "computed";
// PyTorch's keys.
constexpr const char* kSignature = "pkg.torch.export.ExportedProgram.graph_signature";
constexpr const char* kKind = "pkg.torch.export.graph_signature.InputSpec.kind";
constexpr const char* kFoldedFrom = "pkg.onnxscript.optimizer.folded_from";
constexpr const char* kFxNode = "pkg.torch.onnx.fx_node";
constexpr const char* kScopes = "pkg.torch.onnx.name_scopes";  // of a node, the modules from the outermost, and itself

using Properties = google::protobuf::RepeatedPtrField<onnx::StringStringEntryProto>;

const std::string* find(const Properties& properties, std::string_view key) {
  for (const auto& entry : properties) {
    if (entry.key() == key) return &entry.value();
  }
  return nullptr;
}

void add(Properties* properties, const char* key, const std::string& value) {
  auto* entry = properties->Add();
  entry->set_key(key);
  entry->set_value(value);
}

// One a line.
std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "\n") + name;
  return text;
}

std::vector<std::string> lines_of(const Value& initializer, const char* key) {
  std::vector<std::string> names;
  const std::string* text = find(initializer.initializer()->metadata_props(), key);
  for (size_t at = 0; text && at < text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    names.push_back(text->substr(at, end - at));
    at = end + 1;
  }
  return names;
}

// Writes metadata of a tensor. Returns the initializer, which is a new value where the contents are beside the message.
Value* set_property(Value* initializer, const char* key, const std::string& value) {
  onnx::TensorProto message = *initializer->initializer();
  auto* properties = message.mutable_metadata_props();
  for (int i = properties->size() - 1; i >= 0; --i) {
    if (properties->Get(i).key() == key) properties->DeleteSubrange(i, 1);
  }
  add(properties, key, value);
  Graph& graph = initializer->graph();
  const Tensor* beside = contents_beside(initializer->shared_initializer());
  if (!beside) {
    graph.set_initializer(initializer, std::move(message));
    return initializer;
  }
  const std::string name = initializer->name();
  graph.rename(initializer, graph.unique_name(name + "/replaced"));
  Value* replacement = graph.add_initializer(name, make_initializer(std::move(message), *beside));
  replacement->set_type(initializer->type());
  graph.replace(initializer, replacement);
  graph.remove_initializer(initializer);
  return replacement;
}

Origin origin_of_kind(std::string_view kind) {
  if (kind == "PARAMETER") return Origin::kParameter;
  return kind == "BUFFER" || kind == "CONSTANT_TENSOR" ? Origin::kConstant : Origin::kUnknown;
}

// Reads the Python string literal that starts at text[*at] and moves *at past it. Quotes are the only escapes.
std::string read_literal(const std::string& text, size_t* at) {
  const char quote = text[*at];
  std::string literal;
  size_t i = *at + 1;
  for (; i < text.size() && text[i] != quote; ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) ++i;
    literal += text[i];
  }
  *at = std::min(i + 1, text.size());
  return literal;
}

// The elements of a Python list of strings: "['a', 'b']".
std::vector<std::string> read_list(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = text.find_first_of("'\""); at < text.size(); at = text.find_first_of("'\"", at)) {
    names.push_back(read_literal(text, &at));
  }
  return names;
}

// The inputs in a graph signature by their names in the module. Written as "p_w: PARAMETER target='w'" or, by older
// versions, "InputSpec(kind=<InputKind.PARAMETER: 2>, ..., target='w', ...)".
std::unordered_map<std::string, Origin> read_signature(const std::string& text) {
  static constexpr std::string_view kTarget = "target=";
  std::unordered_map<std::string, Origin> origins;
  const size_t end = std::min({text.find("# outputs"), text.find("output_specs="), text.size()});
  size_t begin = 0;
  for (size_t at = text.find(kTarget); at < end; at = text.find(kTarget, begin)) {
    const std::string_view before = std::string_view(text).substr(begin, at - begin);
    begin = at + kTarget.size();
    if (begin >= end || (text[begin] != '\'' && text[begin] != '"')) continue;  // None
    // The last kind before the target is the target's.
    size_t last = 0;
    Origin origin = Origin::kUnknown;
    for (const std::string_view kind : {"PARAMETER", "BUFFER", "CONSTANT_TENSOR"}) {
      const size_t found = before.rfind(kind);
      if (found == std::string_view::npos || (origin != Origin::kUnknown && found < last)) continue;
      last = found;
      origin = origin_of_kind(kind);
    }
    const std::string target = read_literal(text, &begin);
    if (origin != Origin::kUnknown) origins.emplace(target, origin);
  }
  return origins;
}

// The module whose code a node is of, as the exporter says; "" where it does not. `own`: the module of a weight that
// the node reads, which is meant where the scope may be its.
std::string module_of_node(const Node& node, const std::string& own) {
  const std::string* scopes = find(node.shell().metadata_props(), kScopes);
  if (!scopes) {
    const std::string scope = module_of_scope(node.name());
    return may_be_scope_of(scope, own) ? own : scope;
  }
  const std::vector<std::string> names = read_list(*scopes);
  return names.size() > 1 ? names[names.size() - 2] : "";
}

// What the message says of one initializer.
struct Facts {
  Origin origin = Origin::kUnknown;
  std::vector<std::string> names;  // of the parameters that it was folded from
  bool repeated = false;           // one of the values between has the name of an operator that repeats elements
};

// Names of values are those of PyTorch's operators: "expand_1", "ones_like".
bool repeats(std::string_view name) {
  return name.starts_with("expand") || name.starts_with("repeat") || name.starts_with("tile") ||
         name.starts_with("ones") || name.starts_with("broadcast");
}

class Reader {
 public:
  explicit Reader(const onnx::GraphProto& graph) {
    for (const auto& info : graph.value_info()) {
      if (!info.metadata_props().empty()) infos_.emplace(info.name(), &info.metadata_props());
    }
    const std::string* signature = find(graph.metadata_props(), kSignature);
    if (signature) signature_ = read_signature(*signature);
    has_signature_ = signature || std::any_of(graph.input().begin(), graph.input().end(), [](const auto& input) {
                       return find(input.metadata_props(), kKind) != nullptr;
                     });
    for (const auto& [name, properties] : infos_) {
      const std::string* kind = find(*properties, kKind);
      const Origin origin = kind ? origin_of_kind(*kind) : Origin::kUnknown;
      if (origin != Origin::kUnknown) signature_[std::string(name)] = origin;
    }
  }

  // Whether the file tells parameters from buffers and literals, of which it may have none.
  bool has_signature() const { return has_signature_ || !signature_.empty(); }

  Facts facts_of(const std::string& name) const {
    const auto info = infos_.find(name);
    const std::string* folded = info == infos_.end() ? nullptr : find(*info->second, kFoldedFrom);
    if (const auto known = signature_.find(name); known != signature_.end()) return {known->second, {}};
    if (!folded || signature_.empty()) return {};
    Facts facts{Origin::kConstant, {}, repeats(name)};
    for (const std::string& source : read_list(*folded)) {
      const auto known = signature_.find(source);
      facts.repeated = facts.repeated || (known == signature_.end() && repeats(source));
      if (known == signature_.end() || known->second != Origin::kParameter) continue;
      facts.origin = Origin::kParameter;
      facts.names.push_back(source);
    }
    return facts;
  }

 private:
  std::unordered_map<std::string_view, const Properties*> infos_;
  std::unordered_map<std::string, Origin> signature_;
  bool has_signature_ = false;
};

bool is_float_type(int32_t type) { return is_float(static_cast<DType>(type)); }

// ---- Weights of Linear layers

// Whether the exporter wrote this node for a layer y = x Wᵀ: its second input is then Wᵀ.
bool is_linear_layer(const Node& node) {
  const std::string* call = find(node.shell().metadata_props(), kFxNode);
  return node.is("MatMul") && call && call->find("torch.ops.aten.linear.default") != std::string::npos;
}

bool is_folded_linear_weight(const Graph& graph, const Value& value) {
  if (!is_float(value.dtype()) || !value.type().is_static() || value.rank() != 2) return false;
  if (graph.is_output(&value) || graph.is_input(&value) || value.uses().empty()) return false;
  return std::all_of(value.uses().begin(), value.uses().end(), [&](const Use& use) {
    return use.index == 1 && &use.node->graph() == &graph && is_linear_layer(*use.node);
  });
}

// The parameter, which has `contents`: the one that the graph has, or a new one. Null if another value has the name.
Value* parameter_of(Graph* graph, const Value& folded, const std::string& name, const Tensor& contents) {
  if (Value* present = graph->find(name)) {
    const bool fits = present->is_initializer() && &present->graph() == graph && present->type().is_static() &&
                      present->dtype() == contents.dtype() && present->type().shape() == contents.shape();
    if (!fits) return nullptr;
    const Tensor stored = stored_contents(*present);
    return std::memcmp(stored.data(), contents.data(), contents.bytes()) == 0 ? present : nullptr;
  }
  onnx::TensorProto message;
  message.set_name(name);
  for (const auto& entry : folded.initializer()->metadata_props()) {
    if (entry.key() != kOriginalNames) *message.add_metadata_props() = entry;
  }
  return graph->add_initializer(name, make_initializer(std::move(message), contents));
}

// The name that a weight had before ONNX Runtime's quantizers stored it in integers; "" for other names.
std::string name_before_quantizer(const std::string& name) {
  for (const std::string_view suffix : {"_DQ_Q4", "_DQ_Q8", "_Q4", "_Q8", "_Q2", "_quantized"}) {
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  }
  return "";
}

bool is_number(const onnx::TensorProto& tensor) {
  return std::all_of(tensor.dims().begin(), tensor.dims().end(), [](int64_t size) { return size == 1; });
}

std::shared_ptr<const onnx::TensorProto> make_with_origin(const std::string& name, const Tensor& contents,
                                                          const char* origin) {
  onnx::TensorProto message;
  message.set_name(name);
  add(message.mutable_metadata_props(), kOrigin, origin);
  return make_initializer(std::move(message), contents);
}

const char* text_of(Origin origin) {
  return origin == Origin::kParameter ? kParameter : origin == Origin::kNamed ? kNamed : kConstant;
}

}  // namespace

bool is_name_in_module(const std::string& name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto is_part_of_name = [&](char c) {
    return is_digit(c) || c == '_' || c == '.' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  // Exporters number literals and results: "val_3", "scalar_tensor_default_1", "state.13".
  const std::string last = name.substr(name.find_last_of("._") + 1);
  if (last.empty() || std::all_of(last.begin(), last.end(), is_digit)) return false;
  if (!std::all_of(name.begin(), name.end(), is_part_of_name)) return false;
  for (const char* literal : {"val", "const", "constant", "Constant", "scalar"}) {
    if (name == literal || name == concat("_", literal)) return false;
  }
  // The first result of an operator has the operator's name alone; literals are folded to it.
  for (const char* op :
       {"add",        "clone",           "cos",       "detach", "div",   "exp",       "expand",    "full",
        "full_like",  "lift_fresh_copy", "log",       "mul",    "neg",   "ones",      "ones_like", "pow",
        "reciprocal", "reshape",         "rsqrt",     "sin",    "sqrt",  "squeeze",   "sub",       "tanh",
        "to",         "_to_copy",        "unsqueeze", "view",   "zeros", "zeros_like"}) {
    if (name == op) return false;
  }
  return !name.ends_with("_default") && name.find("_output") == std::string::npos;
}

void keep_origins(onnx::ModelProto* model) {
  onnx::GraphProto* graph = model->mutable_graph();
  std::unordered_set<std::string_view> trained;
  for (const auto& entry : model->training_info()) {
    for (const auto& binding : entry.update_binding()) trained.insert(binding.key());
  }
  const Reader reader(*graph);
  const bool names_tell = model->producer_name() == "pytorch" && !reader.has_signature();
  for (auto& tensor : *graph->mutable_initializer()) {
    if (const std::string before = name_before_quantizer(tensor.name()); !before.empty()) {
      const std::vector<std::string> names = reader.facts_of(before).names;
      if (names.size() == 1 && !find(tensor.metadata_props(), kOriginalNames))
        add(tensor.mutable_metadata_props(), kOriginalNames, names[0]);
    }
    if (!is_float_type(tensor.data_type()) || find(tensor.metadata_props(), kOrigin)) continue;
    Facts facts = reader.facts_of(tensor.name());
    if (names_tell && is_number(tensor) && is_name_in_module(tensor.name())) facts.origin = Origin::kNamed;
    if (trained.contains(tensor.name())) facts.origin = Origin::kParameter;
    if (facts.origin == Origin::kUnknown) continue;
    add(tensor.mutable_metadata_props(), kOrigin, text_of(facts.origin));
    if (facts.names.empty()) continue;
    add(tensor.mutable_metadata_props(), kOriginalNames, joined(facts.names));
    if (facts.repeated) add(tensor.mutable_metadata_props(), kRepeated, "1");
  }
}

std::shared_ptr<const onnx::TensorProto> make_parameter(const std::string& name, const Tensor& contents) {
  return make_with_origin(name, contents, kParameter);
}

std::shared_ptr<const onnx::TensorProto> make_buffer(const std::string& name, const Tensor& contents) {
  return make_with_origin(name, contents, kConstant);
}

bool had_four_bits(const Value* value) {
  return value && value->is_initializer() && find(value->initializer()->metadata_props(), kFourBits);
}

Origin origin_of(const Value& initializer) {
  const std::string* origin = find(initializer.initializer()->metadata_props(), kOrigin);
  if (!origin) return Origin::kUnknown;
  for (const auto& [text, which] : {std::pair{kParameter, Origin::kParameter},
                                    {kNamed, Origin::kNamed},
                                    {kConstant, Origin::kConstant},
                                    {kComputed, Origin::kComputed}}) {
    if (*origin == text) return which;
  }
  return Origin::kUnknown;
}

bool may_be_repeated(const Value& initializer) { return find(initializer.initializer()->metadata_props(), kRepeated); }

void set_computed(Value* initializer) { set_property(initializer, kOrigin, kComputed); }

Value* set_buffer(Value* initializer) {
  const Origin origin = origin_of(*initializer);
  if (origin == Origin::kParameter || origin == Origin::kConstant) return initializer;
  return set_property(initializer, kOrigin, kConstant);
}

Value* add_other_name(Value* initializer, const std::string& name) {
  std::vector<std::string> names = lines_of(*initializer, kTiedNames);
  names.push_back(name);
  return set_property(initializer, kTiedNames, joined(names));
}

std::vector<std::string> original_names(const Value& initializer) { return lines_of(initializer, kOriginalNames); }

std::vector<std::string> other_names(const Value& initializer) {
  std::vector<std::string> names = original_names(initializer);
  for (std::string& name : lines_of(initializer, kTiedNames)) names.push_back(std::move(name));
  return names;
}

std::string module_of_scope(const std::string& node) {
  const size_t last = node.rfind('/');
  if (!node.starts_with('/') || last == 0) return "";
  std::string module, within;  // `within` ends with the name of the module that is called before
  for (size_t at = 1; at < last;) {
    const size_t end = std::min(node.find('/', at), last);
    const std::string called = node.substr(at, end - at);
    at = end + 1;
    // A module of a Sequential has the Sequential's name before its number: "/net/net.0/Relu" is of "net.0".
    const bool repeats = !within.empty() && called.starts_with(within + ".");
    if (repeats) module.resize(module.size() - within.size());
    module += repeats || module.empty() ? called : concat(".", called);
    within = called;
  }
  return module;
}

bool may_be_scope_of(const std::string& scope, const std::string& module) {
  // Containers that are not called, such as a ModuleDict, are no part of a scope.
  const std::string all = "." + module + ".";
  if (scope.empty() || !all.ends_with("." + scope.substr(scope.rfind('.') + 1) + ".")) return false;
  size_t at = 0;
  for (size_t begin = 0; begin <= scope.size() && at != std::string::npos;) {
    const size_t end = std::min(scope.find('.', begin), scope.size());
    const std::string atom = "." + scope.substr(begin, end - begin);
    at = all.find(atom + ".", at);
    if (at != std::string::npos) at += atom.size();
    begin = end + 1;
  }
  return at != std::string::npos;
}

const Node& reader_of(const Use& use) {
  const Value* moved = use.node->is("Transpose") ? use.node->output() : nullptr;
  return moved && moved->uses().size() == 1 ? *moved->uses()[0].node : *use.node;
}

std::string name_at_reader(const Value& weight, const Node& reader) {
  const size_t dot = weight.name().rfind('.');
  if (dot == std::string::npos) return "";
  const std::string own = weight.name().substr(0, dot), module = module_of_node(reader, own);
  if (module.empty()) return "";
  // A module that contains the weight's own one reads it there.
  return module == own || own.starts_with(module + ".") ? weight.name() : module + weight.name().substr(dot);
}

std::vector<std::string> names_of_readers(const Value& weight, const Node** unnamed) {
  if (unnamed) *unnamed = nullptr;
  std::vector<const Node*> readers;
  for (const Use& use : weight.uses()) {
    if (&use.node->graph() != &weight.graph()) continue;
    readers.push_back(&reader_of(use));
  }
  const bool differ =
      std::any_of(readers.begin(), readers.end(), [&](const Node* reader) { return reader->op() != readers[0]->op(); });
  std::vector<std::string> names;
  for (const Node* reader : readers) {
    const std::string name = name_at_reader(weight, *reader);
    if (name.empty() && unnamed && differ) *unnamed = reader;
    const bool is_new = !name.empty() && name != weight.name() && std::count(names.begin(), names.end(), name) == 0;
    if (is_new) names.push_back(name);
  }
  return names;
}

Tensor transposed(const Tensor& x) {
  if (x.narrow()) return Tensor::widened(transposed(*x.narrow()));
  const int64_t rows = x.shape()[0], columns = x.shape()[1];
  Tensor y(x.dtype(), {columns, rows});
  const size_t element = size_of(x.dtype());
  const auto* from = x.data<char>();
  auto* to = y.data<char>();
  constexpr int64_t kBlock = 32;  // rows and columns that stay in the cache
  for (int64_t i0 = 0; i0 < rows; i0 += kBlock) {
    for (int64_t j0 = 0; j0 < columns; j0 += kBlock) {
      for (int64_t i = i0; i < std::min(rows, i0 + kBlock); ++i) {
        for (int64_t j = j0; j < std::min(columns, j0 + kBlock); ++j) {
          std::memcpy(to + static_cast<size_t>(j * rows + i) * element,
                      from + static_cast<size_t>(i * columns + j) * element, element);
        }
      }
    }
  }
  release_pages(x);
  return y;
}

std::vector<std::string> restore_linear_weights(Graph* graph) {
  std::vector<std::string> restored;
  for (Value* folded : std::vector<Value*>(graph->initializers())) {
    const std::vector<std::string> names = original_names(*folded);
    if (names.size() != 1 || !is_folded_linear_weight(*graph, *folded)) continue;
    Value* weight = parameter_of(graph, *folded, names[0], transposed(stored_contents(*folded)));
    if (!weight) continue;
    const std::string name = folded->name();
    const TensorType type = folded->type();
    graph->rename(folded, graph->unique_name(name + "/folded"));
    Node* transpose = graph->add_node("Transpose", {weight}, {name}, "", graph->first());
    transpose->set_attr("perm", std::vector<int64_t>{1, 0});
    transpose->output()->set_type(type);
    graph->replace(folded, transpose->output());
    graph->remove_initializer(folded);
    restored.push_back(names[0]);
  }
  return restored;
}

}  // namespace onnx_train
