#include "kernels/cuda/fused/source.h"
#include "onnx_passes/operators/operators.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "kernels/cuda/fused/formulas.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/support/threads.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

constexpr int kMostOperands = 8;   // of a node in a region of several
constexpr size_t kMostPacks = 32;  // inputs of which a thread's registers hold several elements
// Neighbouring elements per thread: 16 bytes of the narrowest type, where 1-byte types count as 2 bytes.
constexpr int64_t kElementsOfThread = 4, kNarrowElementsOfThread = 8;

int64_t pack_of(const FusedBody& body) {
  const auto has_half = [](const std::vector<Value*>& values) {
    return std::any_of(values.begin(), values.end(), [](const Value* v) { return v && is_half(v->dtype()); });
  };
  if (body.space.row_size > 0 || body.inputs.size() > kMostPacks) return 1;
  const bool narrow = has_half(body.inputs) || has_half(body.outputs);
  if (narrow && body.space.size % kNarrowElementsOfThread == 0) return kNarrowElementsOfThread;
  return body.space.size % kElementsOfThread == 0 ? kElementsOfThread : 1;
}

// Whether values of regions may have this type.
bool is_fusable(DType dtype) {
  return is_float(dtype) || dtype == DType::kInt32 || dtype == DType::kInt64 || dtype == DType::kBool;
}

// Returns the text of an element's offset in an operand that is broadcast to the space of `index`.
std::string offset_text(const Broadcast& pattern, const std::string& index) {
  std::string text;
  int64_t inner = 1;
  for (size_t d = 0; d < pattern.rank(); ++d) {
    if (pattern.stride(d, 0) != 0) {
      std::string at = inner == 1 ? index : concat(index, " / ", inner);
      if (d + 1 < pattern.rank()) at = concat("(", at, ") % ", pattern.dim(d));
      text += concat(text.empty() ? "" : " + ", "(", at, ") * ", pattern.stride(d, 0));
    }
    inner *= pattern.dim(d);
  }
  return text.empty() ? "0" : text;
}

class Writer {
 public:
  Writer(const NodeSpec& spec, const FusedBody& body)
      : spec_(spec),
        body_(body),
        rows_(body.space.row_size > 0 ? body.space.size / body.space.row_size : 0),
        pack_(pack_of(body)) {}

  FusedSourceText write() {
    find_stages();
    find_outputs();
    if (rows_ > 0) {
      write_rows();
    } else {
      write_elements();
    }
    finish();
    return std::move(result_);
  }

 private:
  // ---- Stages

  // Returns the number of row reductions, one after the other, that must be complete before the value can be computed.
  int stage(const Value* value) const {
    const auto found = stages_.find(value);
    return found == stages_.end() ? 0 : found->second;
  }

  void find_stages() {
    for (const Node* node : body_.nodes) {
      const bool reduces = is_reduction(*node);
      const Value& reader = reduces ? *node->input(0) : *node->output();
      int latest = 0;
      for (int i = 0; i < num_operands(*node); ++i) {
        if (node->input(i)) latest = std::max(latest, stage(body_.source(node->input(i), reader).root));
      }
      const bool of_rows = reduces && body_.extent(node->output()) == ValueExtent::kRow;
      stages_[node->output()] = latest + of_rows;
      last_stage_ = std::max(last_stage_, latest + of_rows);
    }
  }

  // Finds the places that the kernel writes; sources of reductions that follow come last.
  void find_outputs() {
    for (size_t o = 0; o < body_.outputs.size(); ++o) {
      const Value* value = body_.outputs[o];
      if (body_.extent(value) != ValueExtent::kTerminal) written_.push_back({value, {OperandPlace::kOutput, o}});
    }
    for (size_t o = 0; o < body_.outputs.size(); ++o) {
      if (body_.extent(body_.outputs[o]) != ValueExtent::kTerminal) continue;
      const Node* reduction = body_.source(body_.outputs[o], *body_.outputs[o]).root->producer();
      const Value* narrow = narrow_input(*reduction);
      const OperandPlace from = narrow ? OperandPlace{OperandPlace::kInput, port(narrow)} : source_of(*reduction);
      const DType stored = narrow ? narrow->dtype() : reduction->input(0)->dtype();
      result_.reductions.push_back({reduction, from, stored, static_cast<int>(o)});
    }
  }

  // Returns the 16-bit input that a sum reads widened and in order, or null if it reads something else.
  const Value* narrow_input(const Node& reduction) const {
    const Value* in = reduction.input(0);
    const FusedSource wide = body_.source(in, *in);
    const Node* cast = body_.computes(wide.root) ? wide.root->producer() : nullptr;
    if (!reduction.is("ReduceSum") || in->dtype() != DType::kFloat || wide.pattern || !cast || !cast->is("Cast"))
      return nullptr;
    const FusedSource from = body_.source(cast->input(0), *wide.root);
    const bool is_input = is_half(from.root->dtype()) && !body_.computes(from.root) && !from.pattern;
    return is_input && !is_constant(from.root) ? from.root : nullptr;
  }

  // Returns the place of a reduction's input after the kernel has run.
  OperandPlace source_of(const Node& reduction) {
    const Value* in = reduction.input(0);
    const FusedSource from = body_.source(in, *in);
    if (!body_.computes(from.root) && !from.pattern && !is_constant(from.root))
      return {OperandPlace::kInput, port(from.root)};
    for (const auto& [value, place] : written_) {
      const FusedSource written = body_.source(value, *value);
      const bool same_size = num_elements_of(*value) == num_elements_of(*in);
      if (written.root == from.root && !written.pattern && !from.pattern && same_size) return place;
    }
    const OperandPlace made = workspace_.reserve(static_cast<size_t>(num_elements_of(*in)) * size_of(in->dtype()));
    written_.push_back({in, made});
    return made;
  }

  // Returns the number of the input; that of all inputs for other values.
  size_t port(const Value* input) const {
    return static_cast<size_t>(std::find(body_.inputs.begin(), body_.inputs.end(), input) - body_.inputs.begin());
  }

  // Whether the root of a source is a constant of the body.
  bool is_constant(const Value* root) const { return !body_.computes(root) && port(root) == body_.inputs.size(); }

  // ---- Parameters

  // Returns the name of the parameter that holds the address.
  std::string parameter(const OperandPlace& place, const std::string& type) {
    for (size_t i = 0; i < result_.arguments.size(); ++i) {
      if (result_.arguments[i] == place) return concat("p", i);
    }
    result_.arguments.push_back(place);
    const std::string name = concat("p", result_.arguments.size() - 1);
    parameters_ += concat(", ", place.kind == OperandPlace::kInput ? "const " : "", type, "* ", name);
    return name;
  }

  // ---- Values. `lines_` holds the statements of the pass that is being written.

  void line(const std::string& text) { lines_ += indent_ + text + "\n"; }

  std::string new_name() { return concat("v", names_++); }

  // Returns the operand `value` of a reader as an expression, after writing the statements that it depends on.
  std::string operand(const Value* value, const Value& reader, bool of_row) {
    if (!value) return "";
    const FusedSource from = body_.source(value, reader);
    const std::string type = element_type(from.root->dtype());
    if (is_constant(from.root)) {
      const Tensor constant = constant_of(from.root);
      return constant_text(type, constant.data(), constant.bytes());
    }
    if (!body_.computes(from.root)) return load(from, type, of_row);
    return value_of(from.root);
  }

  std::string load(const FusedSource& from, const std::string& type, bool of_row) {
    const std::string name = parameter({OperandPlace::kInput, port(from.root)}, type);
    (from.pattern || of_row ? read_elsewhere_ : read_in_order_).insert(from.root);
    if (!from.pattern && !of_row && pack_ > 1) {
      const auto [place, added] = packs_.try_emplace(name, concat(name, "_pack"));
      if (added) loads_ += concat("  const auto ", place->second, " = load<", pack_, ">(", name, " + first);\n");
      return concat(place->second, ".at[e]");
    }
    const std::string index = of_row ? "row" : "i";
    const std::string at = from.pattern ? offset_text(*from.pattern, index) : index;
    const auto [place, added] = (of_row ? row_loads_ : element_loads_).try_emplace(concat(name, "[", at, "]"), "");
    if (added) {
      place->second = new_name();
      line(concat("const ", type, " ", place->second, " = ", place->first, ";"));
    }
    return place->second;
  }

  // Returns the name of a computed value.
  std::string value_of(const Value* value) {
    const auto known = computed_.find(value);
    if (known != computed_.end()) return known->second;
    const Node& node = *value->producer();
    const bool of_row = body_.extent(value) == ValueExtent::kRow;
    std::vector<std::string> operands;
    for (int i = 0; i < num_operands(node); ++i) operands.push_back(operand(node.input(i), *value, of_row));
    const std::string text = node.is("Expand") ? operands[0] : formula_text(node, operands);
    const std::string name = new_name();
    line(concat("const ", element_type(value->dtype()), " ", name, " = ", text, ";"));
    computed_.emplace(value, name);
    if (!of_row) of_elements_.push_back(value);
    return name;
  }

  // Forgets the values of elements: the next pass computes those that it needs again.
  void end_pass() {
    for (const Value* value : of_elements_) computed_.erase(value);
    of_elements_.clear();
    element_loads_.clear();
  }

  bool of_row(const Value* value) const { return body_.extent(value) == ValueExtent::kRow; }

  // ---- Without rows

  void write_elements() {
    indent_ = "    ";
    for (const auto& [value, place] : written_) {
      const std::string type = element_type(value->dtype()), to = parameter(place, type);
      const std::string from = operand(value, *value, false);
      if (pack_ == 1) {
        stores_ += concat("    ", to, "[i] = ", from, ";\n");
        continue;
      }
      loads_ += concat("  Pack<", type, ", ", pack_, "> ", to, "_pack;\n");
      line(concat(to, "_pack.at[e] = ", from, ";"));
      stores_ += concat("  store(", to, " + first, ", to, "_pack);\n");
    }
    result_.count = body_.space.size;
    result_.threads = body_.space.size / pack_;
    body_text_ = concat("  const Index first = (Index{blockIdx.x} * kThreads + threadIdx.x) * ", pack_,
                        ";\n  if (first >= count) return;\n", loads_);
    if (pack_ == 1) {
      body_text_ += "  {\n    const Index i = first;\n" + lines_ + stores_ + "  }\n";
    } else {
      const bool indexed = !element_loads_.empty();
      body_text_ += concat("#pragma unroll\n  for (int e = 0; e < ", pack_, "; ++e) {\n",
                           indexed ? "    const Index i = first + e;\n" : "", lines_, "  }\n", stores_);
    }
  }

  // ---- With rows

  void write_rows() {
    const int64_t size = body_.space.row_size;
    const int threads = row_threads(rows_, size, true);
    result_.count = rows_;
    result_.threads = rows_ * threads;
    body_text_ = concat("  using Threads = RowThreads<", threads,
                        ">;\n  const Index row = Threads::row();\n  if (row >= count) return;\n");
    for (int s = 0; s < last_stage_; ++s) {
      write_reductions(s, size, threads);
      write_row_values(s + 1);
    }
    write_row_outputs();
    write_last_pass(size, threads);
  }

  std::string open_pass(int64_t size, int threads) const {
    return concat("  for (Index j = Threads::first(); j < ", size, "; j += ", threads,
                  ") {\n    const Index i = row * ", size, " + j;\n");
  }

  // Writes the reductions whose inputs are known after `s` reductions.
  void write_reductions(int s, int64_t size, int threads) {
    std::string starts, ends, adds;
    indent_ = "    ";
    for (const Node* node : body_.nodes) {
      const Value* value = node->output();
      if (body_.is_alias(*node) || !is_reduction(*node) || !of_row(value)) continue;
      if (stage(value) != s + 1) continue;
      const std::string reducer = reducer_text(*node), name = new_name();
      starts += concat("  auto ", name, "_sum = ", reducer, "::start();\n");
      const std::string in = operand(node->input(0), *node->input(0), false);
      adds += concat("    ", name, "_sum = ", reducer, "::add(", name, "_sum, ", in, ");\n");
      ends += concat("  ", name, "_sum = Threads::merge(", name, "_sum, [](const auto& a, const auto& b) { return ",
                     reducer, "::merge(a, b); });\n  const ", element_type(value->dtype()), " ", name, " = ", reducer,
                     "::finish(", name, "_sum, ", size, ");\n");
      reduced_.emplace_back(value, name);
    }
    body_text_ += starts + open_pass(size, threads) + lines_ + adds + "  }\n" + ends;
    lines_.clear();
    end_pass();
    for (const auto& [value, name] : reduced_) computed_.emplace(value, name);
  }

  // Writes, outside of any pass, the values of rows that are known after `s` reductions.
  void write_row_values(int s) {
    indent_ = "  ";
    for (const Node* node : body_.nodes) {
      const Value* value = node->output();
      if (body_.is_alias(*node) || !of_row(value) || stage(value) != s) continue;
      value_of(value);
    }
    body_text_ += lines_;
    lines_.clear();
  }

  void write_row_outputs() {
    indent_ = "    ";
    for (const auto& [value, place] : written_) {
      if (!of_row(value)) continue;
      const std::string to = parameter(place, element_type(value->dtype()));
      line(concat(to, "[row] = ", operand(value, *value, true), ";"));
    }
    if (!lines_.empty()) body_text_ += "  if (Threads::first() == 0) {\n" + lines_ + "  }\n";
    lines_.clear();
    row_loads_.clear();
  }

  void write_last_pass(int64_t size, int threads) {
    indent_ = "    ";
    std::string stores;
    for (const auto& [value, place] : written_) {
      if (of_row(value)) continue;
      const std::string to = parameter(place, element_type(value->dtype()));
      stores += concat("    ", to, "[i] = ", operand(value, *value, false), ";\n");
    }
    if (!stores.empty()) body_text_ += open_pass(size, threads) + lines_ + stores + "  }\n";
  }

  // ---- The whole text

  void finish() {
    constexpr int64_t kSmall = int64_t{1} << 30;
    const bool small = body_.space.size < kSmall;
    result_.text =
        concat("#include \"kernels/cuda/fused/generated.h\"\nusing namespace onnx_train::cuda;\nusing Index = ",
               small ? "int32_t" : "int64_t", ";\nextern \"C\" __global__ void __launch_bounds__(", kThreads, ") ",
               kFusedKernel, "(const int32_t* guard, int64_t count", parameters_,
               ") {\n  if (guard && *guard != 0) return;\n", body_text_, "}\n");
    result_.workspace = workspace_.bytes();
    find_in_place();
  }

  // Returns the value whose memory the call's input `i` is a view of.
  const Value* memory_of(size_t i) const {
    const Value* value = spec_.node().input(static_cast<int>(i));
    while (value && value->producer() && is_view(*value->producer())) value = value->producer()->input(0);
    return value;
  }

  // Whether each thread reads only those elements of the memory of input `i` that it writes, as elements of the space,
  // at the end of its work.
  bool reads_in_order(size_t i) const {
    for (size_t other = 0; other < body_.inputs.size(); ++other) {
      if (!body_.inputs[other] || memory_of(other) != memory_of(i)) continue;
      if (read_elsewhere_.contains(body_.inputs[other])) return false;
      // A reduction that follows reads the input after the kernel has written.
      for (const FinalReduction& reduction : result_.reductions) {
        if (reduction.from == OperandPlace{OperandPlace::kInput, other}) return false;
      }
    }
    return true;
  }

  void find_in_place() {
    for (const auto& [value, place] : written_) {
      if (place.kind != OperandPlace::kOutput || of_row(value)) continue;
      for (size_t i = 0; i < body_.inputs.size(); ++i) {
        const Value* input = body_.inputs[i];
        if (!input || !read_in_order_.contains(input) || size_of(input->dtype()) != size_of(value->dtype())) continue;
        if (reads_in_order(i)) result_.in_place.push_back({static_cast<int>(place.at), static_cast<int>(i)});
      }
    }
  }

  struct Written {
    const Value* value;
    OperandPlace place;
  };

  const NodeSpec& spec_;
  const FusedBody& body_;
  const int64_t rows_, pack_;  // pack_: elements that a thread loads at once
  FusedSourceText result_;
  Workspace workspace_;
  std::unordered_map<const Value*, int> stages_;
  int last_stage_ = 0;
  std::vector<Written> written_;
  std::string parameters_, body_text_, loads_, lines_, stores_, indent_;
  int names_ = 0;
  std::unordered_map<const Value*, std::string> computed_;
  std::vector<std::pair<const Value*, std::string>> reduced_;
  std::vector<const Value*> of_elements_;
  std::map<std::string, std::string> packs_, element_loads_, row_loads_;  // loaded values, by expression
  std::unordered_set<const Value*> read_in_order_, read_elsewhere_;
};

}  // namespace

bool can_fuse(const Node& node) {
  if (node.num_inputs() == 0 || !node.input(0) || node.num_outputs() != 1 || !node.output()) return false;
  if (is_view(node) || node.is("Expand")) return is_fusable(node.output()->dtype());
  if (is_reduction(node)) return is_fusable(node.input(0)->dtype()) && !reducer_text(node).empty();
  if (node.num_inputs() > kMostOperands || node.is("CastLike")) return false;
  const auto fusable = [](const Value* value) { return !value || is_fusable(value->dtype()); };
  return fusable(node.output()) && std::all_of(node.inputs().begin(), node.inputs().end(), fusable) &&
         has_formula(node);
}

FusedSourceText fused_source(const NodeSpec& spec, const FusedBody& body) { return Writer(spec, body).write(); }

}  // namespace onnx_train::cuda
