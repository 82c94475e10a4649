// Optimizer updates (bodies: functions/optimizers.cc), of one tensor or of many in one call (multi-tensor update, see
// lowering/updates.h). One pass over weight, gradient and slots, in place where the memory plan allows.
#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/cpu/training/global_norm.h"
#include "kernels/cpu/training/sgd.h"
#include "kernels/dispatch.h"
#include "kernels/lowering/outline.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/ir/inlining.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train::cpu {
namespace {

using Places = std::map<std::string, int>;

// The input or output number of the kernel's node that a name in `places` refers to; -1 if the name is empty.
int place_of(const Places& places, const std::string& name) {
  const auto found = places.find(name);
  return found == places.end() ? -1 : found->second;
}

double number(const onnx::NodeProto& node, const std::string& name) {
  for (const onnx::AttributeProto& a : node.attribute()) {
    if (a.name() != name) continue;
    return a.has_t() ? from_proto(a.t()).at(0) : static_cast<double>(a.i());
  }
  return 0;
}

// A scalar that the updates share: an input of the node, or a constant of the outlined body.
struct Number {
  int input = -1;
  DType dtype = DType::kDouble;
  double constant = 0;
  bool operator==(const Number&) const = default;

  double at(const Launch& launch) const {
    if (input < 0) return constant;
    switch (dtype) {
      case DType::kInt64: return static_cast<double>(*launch.in<int64_t>(input));
      case DType::kDouble: return *launch.in<double>(input);
      default: return static_cast<double>(*launch.in<float>(input));
    }
  }
};

// What the names in a node of the body refer to.
struct Operands {
  const NodeSpec& spec;
  Places inputs, outputs;
  std::map<std::string, double> constants = {};

  Number number(const std::string& name) const {
    const int input = place_of(inputs, name);
    if (input >= 0) return {input, spec.in_type(input), 0};
    return {-1, DType::kDouble, constants.at(name)};
  }
};

// ---- Rules: what all tensors of a group share

enum class Formula { kSgd, kMomentum, kAdam };

// Coefficients of every element, computed once per step from attributes and scalars.
struct Coefficients {
  double scale, decay, rate, momentum, share;                            // Sgd
  double keep, beta1, rest1, beta2, rest2, v_scale, epsilon, step_size;  // Adam
};

struct Rule {
  Formula formula = Formula::kSgd;
  bool decoupled = false, nesterov = false;
  double decay = 0, momentum = 0, dampening = 0, beta1 = 0, beta2 = 0, epsilon = 0;
  Number step, rate, scale;
  bool operator==(const Rule&) const = default;

  Rule(const onnx::NodeProto& node, const Operands& operands)
      : decoupled(node.op_type() == "AdamW"),
        nesterov(number(node, "nesterov") != 0),
        decay(number(node, "weight_decay")),
        momentum(number(node, "momentum")),
        dampening(number(node, "dampening")),
        beta1(number(node, "beta1")),
        beta2(number(node, "beta2")),
        epsilon(number(node, "epsilon")) {
    const bool is_sgd = node.op_type() == "Sgd";
    formula = !is_sgd ? Formula::kAdam : node.input(2).empty() ? Formula::kSgd : Formula::kMomentum;
    const int first = is_sgd ? 3 : 4;  // step, learning_rate and grad_scale are consecutive inputs
    step = operands.number(node.input(first));
    rate = operands.number(node.input(first + 1));
    scale = operands.number(node.input(first + 2));
  }

  Coefficients at(const Launch& launch) const {
    const double t = step.at(launch);
    Coefficients k{};
    k.rate = rate.at(launch);
    k.scale = scale.at(launch);
    k.decay = decoupled ? 0 : decay;
    if (formula != Formula::kAdam) {
      k.momentum = momentum;
      k.share = t == 1 ? 1.0 : 1 - dampening;
      return k;
    }
    k.keep = decoupled ? 1 - k.rate * decay : 1;
    k.beta1 = beta1, k.rest1 = 1 - beta1;
    k.beta2 = beta2, k.rest2 = 1 - beta2;
    k.v_scale = std::sqrt(1 - std::pow(beta2, t));
    k.epsilon = epsilon;
    k.step_size = k.rate / (1 - std::pow(beta1, t));
    return k;
  }
};

// ---- Formulas over a piece of one tensor
// Outputs may be the inputs of the same name: no restrict, but every element is read before it is written.

template <typename T>
void momentum(int64_t n, const T* w, const T* g, const T* b, T* next_w, T* next_b, const Coefficients& c,
              bool nesterov) {
  const T scale = static_cast<T>(c.scale), decay = static_cast<T>(c.decay), rate = static_cast<T>(c.rate);
  const T momentum = static_cast<T>(c.momentum), share = static_cast<T>(c.share);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const T gradient = g[i] * scale + w[i] * decay;
    const T buffer = b[i] * momentum + gradient * share;
    const T direction = nesterov ? gradient + buffer * momentum : buffer;
    next_b[i] = buffer;
    next_w[i] = w[i] - rate * direction;
  }
}

// Adam and AdamW: Adam has keep = 1, AdamW has decay = 0.
template <typename T>
void adam(int64_t n, const T* w, const T* g, const T* m, const T* v, T* next_w, T* next_m, T* next_v,
          const Coefficients& c) {
  const T scale = static_cast<T>(c.scale), decay = static_cast<T>(c.decay), keep = static_cast<T>(c.keep);
  const T beta1 = static_cast<T>(c.beta1), rest1 = static_cast<T>(c.rest1);
  const T beta2 = static_cast<T>(c.beta2), rest2 = static_cast<T>(c.rest2);
  const T v_scale = static_cast<T>(c.v_scale), epsilon = static_cast<T>(c.epsilon);
  const T step_size = static_cast<T>(c.step_size);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const T gradient = g[i] * scale + w[i] * decay;
    const T first = m[i] * beta1 + gradient * rest1;
    const T second = v[i] * beta2 + gradient * gradient * rest2;
    next_m[i] = first;
    next_v[i] = second;
    next_w[i] = w[i] * keep - step_size * (first / (std::sqrt(second) / v_scale + epsilon));
  }
}

// ---- Multi-tensor updates

// One tensor: its rule and the numbers of its operands.
struct Update {
  size_t rule;
  DType dtype;
  int64_t size;
  int inputs[4];   // w, g, slots
  int outputs[3];  // next_w, next slots

  template <typename T>
  void run(const Launch& launch, const Rule& r, const Coefficients& k, int64_t begin, int64_t end) const {
    const auto in = [&](int i) { return launch.in<T>(inputs[i]) + begin; };
    const auto out = [&](int i) { return launch.out<T>(outputs[i]) + begin; };
    const int64_t n = end - begin;
    const auto as_number = [](double x) { return static_cast<T>(x); };
    switch (r.formula) {
      case Formula::kSgd:
        return vectorized(
            [&] { sgd(n, in(0), in(1), out(0), as_number(k.scale), as_number(k.decay), as_number(k.rate)); });
      case Formula::kMomentum:
        return vectorized([&] { momentum(n, in(0), in(1), in(2), out(0), out(1), k, r.nesterov); });
      case Formula::kAdam: return vectorized([&] { adam(n, in(0), in(1), in(2), in(3), out(0), out(1), out(2), k); });
    }
  }
};

// Elements per piece. Threads share the pieces of all tensors, numbered tensor after tensor, so their load is equal
// however large the tensors are.
constexpr int64_t kPiece = 1024;

struct Updates {
  std::vector<Rule> rules;
  std::vector<Update> tensors;
  std::vector<int64_t> first_piece{0};  // of each tensor, then the total number of pieces

  void add(const onnx::NodeProto& node, const Operands& operands) {
    const Rule rule(node, operands);
    const auto known = std::find(rules.begin(), rules.end(), rule);
    Update update{static_cast<size_t>(known - rules.begin()), DType::kFloat, 0, {-1, -1, -1, -1}, {-1, -1, -1}};
    if (known == rules.end()) rules.push_back(rule);
    const int slots = rule.formula == Formula::kSgd ? 0 : rule.formula == Formula::kMomentum ? 1 : 2;
    for (int i = 0; i < 2 + slots; ++i) update.inputs[i] = place_of(operands.inputs, node.input(i));
    for (int i = 0; i < 1 + slots; ++i) update.outputs[i] = place_of(operands.outputs, node.output(i));
    update.dtype = operands.spec.in_type(update.inputs[0]);
    update.size = operands.spec.in_size(update.inputs[0]);
    tensors.push_back(update);
    first_piece.push_back(first_piece.back() + (update.size + kPiece - 1) / kPiece);
  }

  void run(const Launch& launch) const {
    Coefficients* coefficients = launch.scratch<Coefficients>();
    for (size_t r = 0; r < rules.size(); ++r) coefficients[r] = rules[r].at(launch);
    parallel_for(first_piece.back(), kElementGrain / kPiece, [&](int64_t begin, int64_t end) {
      auto t = static_cast<size_t>(std::upper_bound(first_piece.begin(), first_piece.end(), begin) -
                                   first_piece.begin() - 1);
      for (; t < tensors.size() && first_piece[t] < end; ++t) {
        const Update& update = tensors[t];
        const int64_t from = (std::max(begin, first_piece[t]) - first_piece[t]) * kPiece;
        const int64_t to = std::min((end - first_piece[t]) * kPiece, update.size);
        if (from >= to) continue;
        dispatch_float(update.dtype, [&](auto zero) {
          update.run<decltype(zero)>(launch, rules[update.rule], coefficients[update.rule], from, to);
        });
      }
    });
  }

  Prepared prepare() const {
    std::vector<InPlace> in_place;
    for (const Update& u : tensors) {
      in_place.push_back({u.outputs[0], u.inputs[0]});
      for (int slot = 0; slot < 2 && u.outputs[1 + slot] >= 0; ++slot) {
        in_place.push_back({u.outputs[1 + slot], u.inputs[2 + slot]});
      }
    }
    return {.run = [*this](const Launch& launch) { run(launch); },
            .workspace = rules.size() * sizeof(Coefficients),
            .in_place = std::move(in_place)};
  }
};

// ---- One tensor: the node itself

onnx::NodeProto as_message(const NodeSpec& spec, Places* inputs, Places* outputs) {
  onnx::NodeProto node = spec.node().shell();
  for (int i = 0; i < spec.num_inputs(); ++i) {
    node.add_input(spec.has_input(i) ? spec.node().input(i)->name() : "");
    if (spec.has_input(i)) inputs->emplace(node.input(i), i);
  }
  for (int i = 0; i < spec.num_outputs(); ++i) {
    node.add_output(spec.has_output(i) ? spec.node().output(i)->name() : "");
    if (spec.has_output(i)) outputs->emplace(node.output(i), i);
  }
  return node;
}

Prepared prepare_one(const NodeSpec& spec) {
  Operands operands{spec, {}, {}};
  const onnx::NodeProto node = as_message(spec, &operands.inputs, &operands.outputs);
  Updates updates;
  updates.add(node, operands);
  return updates.prepare();
}

bool has_supported_types(const NodeSpec& spec, int first_scalar) {
  for (int i = 0; i < spec.num_outputs(); ++i) {
    if (!spec.has_output(i)) return false;
  }
  return is_float_or_double(spec.in_type(0)) && spec.in_type(first_scalar) == DType::kInt64 &&
         is_float_or_double(spec.in_type(first_scalar + 1)) && is_float_or_double(spec.in_type(first_scalar + 2));
}

// ---- Many tensors: the body of the call names them

bool is_one_update(const Node& node) {
  return node.is("Sgd", kDomain) || node.is("Adam", kDomain) || node.is("AdamW", kDomain);
}

// Whether `node` is an update whose tensors are inputs of the body and whose scalars are inputs or constants. Sets the
// types of its outputs to those of the tensors they replace.
bool is_update_of(const Graph& body, Node* node) {
  for (int i = 0; i < node->num_inputs(); ++i) {
    const Value* input = node->input(i);
    const bool scalar = i + 3 >= node->num_inputs();
    if (input && !body.is_input(input) && !(scalar && input->producer() && input->producer()->is("Constant")))
      return false;
  }
  for (int i = 0; i < node->num_outputs(); ++i) {
    const Value* old = node->input(i == 0 ? 0 : i + 1);
    if (!old || !node->output(i)) return false;
    node->output(i)->set_type(old->type());
  }
  check_shapes(*node);
  return true;
}

// Whether the body has the form that merge_updates writes: constants, and updates of the call's inputs that produce its
// outputs.
bool supports_all(const NodeSpec& spec) {
  const onnx::FunctionProto* body = function_of(spec.node());
  if (!body || body->input_size() != spec.num_inputs() || body->output_size() != spec.num_outputs()) return false;
  Graph scratch(spec.node().graph().shared_context());
  std::vector<Value*> inputs;
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (!spec.has_input(i)) return false;
    inputs.push_back(scratch.add_input(concat("in", i), spec.node().input(i)->type()));
  }
  const auto outputs = instantiate(*body, spec.node().shell(), &scratch, nullptr, inputs, "body");
  for (Node* node = scratch.first(); node; node = node->next()) {
    if (node->is("Constant")) {
      infer_types(node);
    } else if (!is_one_update(*node) || !is_update_of(scratch, node)) {
      return false;
    }
  }
  for (int i = 0; i < spec.num_outputs(); ++i) {
    const Value* made = outputs[static_cast<size_t>(i)];
    if (!made || !made->producer() || made->producer()->is("Constant") || !spec.has_output(i)) return false;
    if (made->type() != spec.node().output(i)->type()) return false;
  }
  return true;
}

Prepared prepare_all(const NodeSpec& spec) {
  const onnx::FunctionProto& body = *function_of(spec.node());
  Operands operands{spec, {}, {}};
  for (int i = 0; i < body.input_size(); ++i) operands.inputs.emplace(body.input(i), i);
  for (int i = 0; i < body.output_size(); ++i) operands.outputs.emplace(body.output(i), i);
  Updates updates;
  for (const onnx::NodeProto& node : body.node()) {
    if (node.op_type() == "Constant") {
      operands.constants.emplace(node.output(0), number(node, "value"));
    } else {
      updates.add(node, operands);
    }
  }
  return updates.prepare();
}

}  // namespace

std::vector<Kernel> optimizer_kernels() {
  const auto adam_supports = [](const NodeSpec& s) { return has_supported_types(s, 4); };
  return {
      {"Sgd", [](const NodeSpec& s) { return has_supported_types(s, 3); }, prepare_one, kDomain},
      {"Adam", adam_supports, prepare_one, kDomain},
      {"AdamW", adam_supports, prepare_one, kDomain},
      {"Updates", supports_all, prepare_all, kDomain},
      global_norm_kernel(),
  };
}

}  // namespace onnx_train::cpu
