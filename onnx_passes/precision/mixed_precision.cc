#include "onnx_passes/precision/mixed_precision.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/sequence_first.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/rows.h"
#include "onnx_passes/model/training_versions.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/recurrent.h"

namespace onnx_train {
namespace {

using Role = PrecisionRole;

Role role_of(const Node& node) { return operator_of(node).precision; }

constexpr int kOperands = 2;

bool has_float32_operands(const Node& node) {
  return node.input(0)->dtype() == DType::kFloat && node.input(1)->dtype() == DType::kFloat;
}

// X, W, R and h0.
constexpr bool is_recurrent_operand(int i) { return i <= 2 || i == 5; }

// The training form supports no clip, and clip has no gradient.
bool is_float32_recurrence(const Node& node) {
  return node.input(0)->dtype() == DType::kFloat && find_recurrence(node).clip == 0;
}

// ---- The pass

class MixedPrecision {
 public:
  MixedPrecision(Model* model, EntryPoint* step, Precision precision)
      : inference_(*model->graph),
        step_(*step),
        graph_(*step->algorithm),
        all_(precision != Precision::kProductsInBfloat16),
        to_8_bits_(precision == Precision::kFloat8),
        to_(precision == Precision::kFloat16 ? DType::kFloat16 : DType::kBFloat16) {}

  bool run() {
    copy_shared_nodes();
    for (const auto& [original, version] : step_.training_versions) original_of_[version] = original;
    std::unordered_set<const Node*> of_model;  // the other nodes update states
    for (const Node* node : inference_.nodes()) of_model.insert(training_node(*node));
    for (Node* node : graph_.nodes()) {
      // Dropout is active in training only.
      if (of_model.count(node) || node->is("Dropout", kDomain)) convert(node);
    }
    return changed_;
  }

  int rounded() const { return num_rounded_; }  // operators of the model that are computed in fewer bits

 private:
  bool is_changed(const Node& node) const {
    const Role role = role_of(node);
    if (role == Role::kProduct) return has_float32_operands(node);
    if (role == Role::kRecurrent) return converts_recurrence(node);
    return all_ && role == Role::kLookup && node.input(0)->dtype() == DType::kFloat;
  }

  // The node that computes an inference node's first output in a training step; null if it is the node itself.
  Node* training_node(const Node& original) const {
    for (Value* output : original.outputs()) {
      if (!output) continue;
      const Value* version = training_value(step_, output);
      return version != output ? version->producer() : nullptr;
    }
    return nullptr;
  }

  // From the first product on, the step has its own nodes. Where training differs, it has them already.
  void copy_shared_nodes() {
    TrainingVersions versions(&step_, graph_.first());
    for (Node* node : inference_.nodes()) {
      if (training_node(*node)) continue;
      if (is_changed(*node) || versions.are_read_by(*node)) versions.copy(*node);
    }
    versions.redirect(&graph_);
  }

  void convert(Node* node) {
    switch (role_of(*node)) {
      case Role::kProduct:
        if (!has_float32_operands(*node)) break;
        convert_product(node);
        ++num_rounded_;
        break;
      case Role::kActivation:
        if (!all_ || !is_float32_result(*node) || !reads_activation(*node)) break;
        convert_result(node->output(), /*round=*/true);
        ++num_rounded_;
        break;
      case Role::kLookup:
        if (!all_ || !is_float32_result(*node) || is_rounded(node->input(0))) break;
        convert_result(node->output(), /*round=*/true);
        ++num_rounded_;
        break;
      case Role::kRecurrent:
        if (!converts_recurrence(*node)) break;
        ++num_rounded_;
        return convert_recurrent(node);
      case Role::kMovement:
      case Role::kFloat32: break;
    }
    if (reads_activation(*node)) activations_.insert(node->outputs().begin(), node->outputs().end());
  }

  static bool is_float32_result(const Node& node) { return node.output() && node.output()->dtype() == DType::kFloat; }

  bool reads_activation(const Node& node) const {
    bool reads = false;
    for_each_input(node, [&](const Value* v) { reads = reads || activations_.count(v); });
    return reads;
  }

  // The training forms round to bfloat16.
  bool converts_recurrence(const Node& node) const { return to_ == DType::kBFloat16 && is_float32_recurrence(node); }

  Attrs rounding() const { return {{"to", static_cast<int>(to_)}}; }

  void convert_product(Node* node) {
    const bool narrow = to_8_bits_ && multiplies_weight(*node);
    for (int i = 0; i < kOperands; ++i) {
      Value* operand = rounded(node->input(i), node);
      if (narrow) operand = rounded_to_8_bits(operand, node);
      const bool rounds_gradient = all_ && convolves(*node) && (i == 1 || operand->uses().size() > 1);
      node->set_input(i, rounds_gradient ? with_rounded_gradient(operand, node) : operand);
    }
    if (!all_ || !round_bias(node)) convert_result(node->output(), /*round=*/all_);
    if (narrow) round_gradient_to_8_bits(node->output());
  }

  // A bias is rounded, too, and added to the float32 sums: an Add of it, which alone reads the product, is what is
  // rounded, not the product. Returns whether there is such an Add.
  bool round_bias(Node* product) {
    if (!product->is("Gemm") && !product->is("MatMul")) return false;
    const Value* sums = product->output();
    if (product->num_inputs() > kOperands && product->input(kOperands)) {
      Value* c = product->input(kOperands);
      if (is_row_of(*c, *sums)) product->set_input(kOperands, rounded(c, product));
      return false;
    }
    if (sums->uses().size() != 1 || graph_.is_output(sums)) return false;
    const Use use = sums->uses()[0];
    const int bias = 1 - use.index;
    if (!use.node->is("Add") || !is_row_of(*use.node->input(bias), *sums)) return false;
    use.node->set_input(bias, rounded(use.node->input(bias), use.node));
    changed_ = true;
    activations_.insert(sums);
    return true;
  }

  static bool convolves(const Node& node) { return node.is("Conv") || node.is("ConvTranspose"); }

  // The operand of a convolution, whose gradient is rounded: that of a weight, and what is added to other gradients.
  // Accelerators have no convolution of 16 bits that writes float32.
  Value* with_rounded_gradient(Value* operand, Node* convolution) {
    Builder b(&graph_, convolution);
    b.set_name(operand->name() + "/read");
    const Var read = call(b, "RoundGradientTo", {b.var(operand)}, rounding());
    activations_.insert(read.value());
    return read.value();
  }

  // Whether the node is a MatMul or Gemm with a weight whose sizes 8-bit products on accelerators take: multiples
  // of 16.
  static bool multiplies_weight(const Node& node) {
    if (!node.is("MatMul") && !node.is("Gemm")) return false;
    const auto fits = [](const Dim& size) { return size.known() && size.value() > 0 && size.value() % 16 == 0; };
    for (int i = 0; i < kOperands; ++i) {
      const Value* operand = node.input(i);
      const Value* root = operand;
      while (root->producer() && role_of(*root->producer()) == Role::kMovement) root = root->producer()->input(0);
      if (!root->is_initializer() || operand->rank() != 2) continue;
      const Dims& sizes = *operand->type().dims;
      return fits(sizes[0]) && fits(sizes[1]);
    }
    return false;
  }

  // A number of 8 bits is one of bfloat16: rounding it there changes nothing, and tells lowering so.
  Value* rounded_to_8_bits(Value* value, Node* first) {
    Value*& made = rounded_to_8_bits_[value];
    if (made) return made;
    const bool ours = value->producer() && &value->graph() == &graph_;
    Builder b(&graph_, ours ? value->producer()->next() : first);
    b.set_name(value->name() + "/float8");
    const Var narrow = call(b, "RoundTo", {b.var(value)}, {{"to", static_cast<int>(DType::kFloat8E4M3FN)}});
    return made = call(b, "RoundTo", {narrow}, rounding()).value();
  }

  // Gradients of one product are rounded for its backward products alone; `product` is its result.
  void round_gradient_to_8_bits(Value* product) {
    const std::vector<Use> readers = product->uses();
    Builder b(&graph_, product->producer()->next());
    b.set_name(product->name() + "/float8");
    // The gradient meets the last one first.
    Var result = call(b, "RoundGradientTo", {b.var(product)}, rounding());
    result = call(b, "RoundGradientTo", {result}, {{"to", static_cast<int>(DType::kFloat8E5M2)}});
    for (const Use& use : readers) use.node->set_input(use.index, result.value());
    activations_.insert(result.value());
  }

  void convert_recurrent(Node* node) {
    if (node->attr("layout", 0) != 0) node = put_sequence_first(node);
    if (!node) return;  // no node of the step reads it
    for (const Value* output : node->outputs()) {
      // Nodes that only move its values are new and have not been visited.
      for (const Use& use : output ? output->uses() : std::vector<Use>()) activations_.insert(use.node->output());
    }
    Recurrence recurrence = find_recurrence(*node);
    recurrence.round_operands = true;
    recurrence.round_gates = all_ && recurrence.cell != Recurrence::kRnn;
    Builder b(&graph_, node);
    std::vector<Var> inputs;
    for (int i = 0; i < node->num_inputs(); ++i) {
      Value* input = node->input(i);
      inputs.push_back(!input ? Var() : b.var(is_recurrent_operand(i) ? rounded(input, node) : input));
    }
    const auto made = call(b, node->op() + "Train", outputs_in_training(recurrence), inputs, attributes_of(recurrence));
    for (int i = 0; i < node->num_outputs(); ++i) {
      if (!node->output(i)) continue;
      graph_.replace(node->output(i), made[static_cast<size_t>(i)].value());
      move_version(node->output(i), made[static_cast<size_t>(i)].value());
    }
    std::vector<std::string> names;
    for (const Value* output : node->outputs()) names.push_back(output ? output->name() : "");
    graph_.remove(node);
    for (size_t i = 0; i < names.size(); ++i) {
      if (!names[i].empty()) graph_.claim_name(made[i].value(), names[i]);
    }
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i].empty()) continue;
      activations_.insert(made[i].value());
      // y and y_h are rounded already; lowering relies on this annotation. The last c is not rounded.
      if (i < 2) convert_result(made[i].value(), /*round=*/true, /*round_gradient=*/all_);
    }
  }

  // Rounds the gradient of `exact`, and `exact` itself if `round`. The rounded value takes over its name.
  void convert_result(Value* exact, bool round, bool round_gradient = true) {
    changed_ = true;
    const std::string name = exact->name();
    const std::vector<Use> readers = exact->uses();
    graph_.rename(exact, graph_.unique_name(name + "/exact"));
    Builder b(&graph_, exact->producer()->next());
    b.set_name(name + "/rounded");
    Var result = b.var(exact);
    if (round && !is_for_softmax(readers)) result = call(b, "RoundTo", {result}, rounding());
    if (round_gradient) result = call(b, "RoundGradientTo", {result}, rounding());
    for (const Use& use : readers) use.node->set_input(use.index, result.value());
    graph_.claim_name(result.value(), name);
    move_version(exact, result.value());
    activations_.insert(result.value());
  }

  // Makes `to` the training version of the value of which `from` was a training version.
  void move_version(const Value* from, Value* to) {
    const auto found = original_of_.find(from);
    if (found == original_of_.end()) return;
    const Value* original = found->second;
    original_of_.erase(found);
    original_of_[to] = original;
    step_.training_versions[original] = to;
  }

  // Masks that are added to scores contain the lowest float32, which 16 bits would round to infinity.
  static bool is_for_softmax(const std::vector<Use>& readers) {
    return !readers.empty() && std::all_of(readers.begin(), readers.end(), [](const Use& use) {
      return use.node->is("Softmax") || use.node->is("LogSoftmax");
    });
  }

  // Movements keep values rounded. Nodes are converted in order, so nodes before the requesting one do not change.
  bool is_rounded(const Value* value) {
    std::vector<const Value*> moved;
    bool result = false;
    for (const Value* v = value; v && v->producer(); v = v->producer()->input(0)) {
      const Node& node = *v->producer();
      if (const auto known = is_rounded_.find(v); known != is_rounded_.end()) {
        result = known->second;
        break;
      }
      result = node.is("RoundTo", kDomain);
      const bool passes_on = role_of(node) == Role::kMovement || role_of(node) == Role::kLookup;
      if (result || (!passes_on && !node.is("RoundGradientTo", kDomain))) break;
      moved.push_back(v);
    }
    for (const Value* v : moved) is_rounded_[v] = result;
    return result;
  }

  // Rounds the value once for all its readers; `first` is the first of them.
  Value* rounded(Value* value, Node* first) {
    if (is_rounded(value)) return value;
    Value*& made = rounded_[value];
    if (!made) {
      const bool ours = value->producer() && &value->graph() == &graph_;
      Builder b(&graph_, ours ? value->producer()->next() : first);
      b.set_name(concat(value->name(), "/", onnx_train::name(to_)));
      made = call(b, "RoundTo", {b.var(value)}, rounding()).value();
    }
    return made;
  }

  Graph& inference_;
  EntryPoint& step_;
  Graph& graph_;
  const bool all_;        // also round activations
  const bool to_8_bits_;  // also round operands of products with weights to 8 bits
  const DType to_;
  bool changed_ = false;
  std::unordered_set<const Value*> activations_;  // values that depend on a product or a lookup
  std::unordered_map<Value*, Value*> rounded_, rounded_to_8_bits_;
  std::unordered_map<const Value*, const Value*> original_of_;  // training version -> value of the inference graph
  int num_rounded_ = 0;
  std::unordered_map<const Value*, bool> is_rounded_;  // of values that some node moves
};

}  // namespace

Pass mixed_precision(const BuildOptions& options) {
  return {"mixed_precision", [precision = options.precision](Model& model) {
            EntryPoint* step = model.find_entry_point(Entry::kStep);
            if (!step) fail("[MixedPrecision] the model has no entry point 'step'; run the pass 'training_mode' first");
            if (precision == Precision::kFloat32) return false;
            MixedPrecision pass(&model, step, precision);
            const bool changed = pass.run();
            model.set_metadata("onnx_train.rounded", std::to_string(pass.rounded()));
            return changed;
          }};
}

namespace {

constexpr std::pair<const char*, Precision> kPrecisions[] = {{"float32", Precision::kFloat32},
                                                             {"gemm-bf16", Precision::kProductsInBfloat16},
                                                             {"bf16", Precision::kBfloat16},
                                                             {"fp16", Precision::kFloat16},
                                                             {"fp8", Precision::kFloat8}};

}  // namespace

Precision parse_precision(const std::string& name) {
  for (const auto& [known, precision] : kPrecisions) {
    if (name == known) return precision;
  }
  fail("unknown precision '", name, "'; take float32, gemm-bf16, bf16, fp16 or fp8");
}

const char* name(Precision precision) {
  for (const auto& [known, p] : kPrecisions) {
    if (p == precision) return known;
  }
  return "";
}

}  // namespace onnx_train
