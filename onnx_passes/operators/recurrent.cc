// RNN, GRU and LSTM, their training forms and gradients (functions/recurrent.cc), and Scan, which all of these are.
#include "onnx_passes/operators/recurrent.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>
#include <string>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/multiply_adds.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// ---- Rows. T steps, N samples, D directions, H hidden units, I inputs.

using enum ElementTypes;
constexpr auto kRecurrence = OperatorKind::kRecurrence;

constexpr const char* kRnn =
    "X[T, N, I] W[D, H, I] R[D, H, H] B?[D, 2 * H] sequence_lens?:int32[N] initial_h?[D, N, H] -> "
    "Y?[T, D, N, H] Y_h?[D, N, H] where @layout:0 = 0, H = @hidden_size | "
    "X[N, T, I] W[D, H, I] R[D, H, H] B?[D, 2 * H] sequence_lens?:int32[N] initial_h?[N, D, H] -> "
    "Y?[N, T, D, H] Y_h?[N, D, H] where @layout:0 = 1, H = @hidden_size";
constexpr const char* kGru =
    "X[T, N, I] W[D, 3 * H, I] R[D, 3 * H, H] B?[D, 6 * H] sequence_lens?:int32[N] initial_h?[D, N, H] -> "
    "Y?[T, D, N, H] Y_h?[D, N, H] where @layout:0 = 0, H = @hidden_size | "
    "X[N, T, I] W[D, 3 * H, I] R[D, 3 * H, H] B?[D, 6 * H] sequence_lens?:int32[N] initial_h?[N, D, H] -> "
    "Y?[N, T, D, H] Y_h?[N, D, H] where @layout:0 = 1, H = @hidden_size";
constexpr const char* kLstm =
    "X[T, N, I] W[D, 4 * H, I] R[D, 4 * H, H] B?[D, 8 * H] sequence_lens?:int32[N] initial_h?[D, N, H] "
    "initial_c?[D, N, H] P?[D, 3 * H] -> Y?[T, D, N, H] Y_h?[D, N, H] Y_c?[D, N, H] "
    "where @layout:0 = 0, H = @hidden_size | "
    "X[N, T, I] W[D, 4 * H, I] R[D, 4 * H, H] B?[D, 8 * H] sequence_lens?:int32[N] initial_h?[N, D, H] "
    "initial_c?[N, D, H] P?[D, 3 * H] -> Y?[N, T, D, H] Y_h?[N, D, H] Y_c?[N, D, H] "
    "where @layout:0 = 1, H = @hidden_size";

constexpr const char* kRnnTrain =
    "x[T, N, I] w[D, H, I] r[D, H, H] b?[D, 2 * H] lens?:int32[N] h0?[D, N, H] -> y?[T, D, N, H] y_h?[D, N, H]";
constexpr const char* kRnnGrad =
    "r[D, H, H] lens?:int32[N] h0?[D, N, H] y[T, D, N, H] dy?[T, D, N, H] dy_h?[D, N, H] -> "
    "dgates[T, N, D * H] dr?[D, H, H] dh0?[D, N, H]";
constexpr const char* kGruTrain =
    "x[T, N, I] w[D, 3 * H, I] r[D, 3 * H, H] b?[D, 6 * H] lens?:int32[N] h0?[D, N, H] -> "
    "y?[T, D, N, H] y_h?[D, N, H] gates?[T, N, D * 3 * H] candidates?[T, D, N, H]";
constexpr const char* kGruGrad =
    "r[D, 3 * H, H] lens?:int32[N] h0?[D, N, H] y[T, D, N, H] gates[T, N, D * 3 * H] candidates?[T, D, N, H] "
    "dy?[T, D, N, H] dy_h?[D, N, H] -> dgates[T, N, D * 3 * H] dr?[D, 3 * H, H] dh0?[D, N, H] dn?[T, N, D * H]";
constexpr const char* kLstmTrain =
    "x[T, N, I] w[D, 4 * H, I] r[D, 4 * H, H] b?[D, 8 * H] lens?:int32[N] h0?[D, N, H] c0?[D, N, H] p?[D, 3 * H] -> "
    "y?[T, D, N, H] y_h?[D, N, H] y_c?[D, N, H] gates?[T, N, D * 4 * H] cells?[T, D, N, H]";
constexpr const char* kLstmGrad =
    "r[D, 4 * H, H] lens?:int32[N] h0?[D, N, H] c0?[D, N, H] p?[D, 3 * H] y[T, D, N, H] gates[T, N, D * 4 * H] "
    "cells[T, D, N, H] dy?[T, D, N, H] dy_h?[D, N, H] dy_c?[D, N, H] -> "
    "dgates[T, N, D * 4 * H] dr?[D, 4 * H, H] dh0?[D, N, H] dc0?[D, N, H] dp?[D, 3 * H]";

// The first axis of R is the directions; the attributes name the activations of each direction.
void check_directions(const Node& node, const Value* r) {
  const int64_t directions = find_recurrence(node).directions();
  if (!r || !r->has_rank() || r->rank() < 1) return;
  const Dim& given = r->type().dims->front();
  if (!given.known() || given.value() == directions) return;
  fail(node.label(), ": its input '", r->name(), "' is ", to_string(r->type()), ", of ", given.value(),
       " directions; its attribute direction, '", std::string(node.attr("direction", "forward")), "', makes ",
       directions);
}
void check_forward(const Node& node) { check_directions(node, node.input(2)); }
void check_backward(const Node& node) { check_directions(node, node.input(0)); }

void expect_count(const Node& node, const char* what, size_t found, size_t wanted) {
  if (found == wanted) return;
  fail(node.label(), ": its body has ", found, " ", what, "; with these inputs and num_scan_inputs it needs ", wanted);
}

// An attribute with one entry per scanned tensor; may be absent.
void check_list(const Node& node, const char* name, size_t wanted, int64_t lowest, int64_t highest) {
  if (!node.has_attr(name)) return;
  const Shape list = node.attr(name, Shape{});
  if (list.empty()) return;  // the same as absent
  if (list.size() != wanted) fail(node.label(), ": its ", name, " has ", list.size(), " entries; it needs ", wanted);
  for (int64_t entry : list) {
    if (entry < lowest || entry > highest)
      fail(node.label(), ": its ", name, " holds ", entry, "; it must be in [", lowest, ", ", highest, "]");
  }
}

// Every scanned tensor has the axis to scan along, and all have the same number of steps.
void check_steps(const Node& node, int64_t states) {
  const Shape axes = node.attr("scan_input_axes", Shape{});
  const Value* first = nullptr;  // the first one with a known number of steps
  int64_t steps = 0;
  for (int64_t i = 0; states + i < node.num_inputs(); ++i) {
    const Value* x = node.input(static_cast<int>(states + i));
    if (!x) fail(node.label(), ": its input ", states + i, " is missing");
    if (!x->has_rank()) continue;
    const int64_t axis = axes.empty() ? 0 : axes[static_cast<size_t>(i)];
    if (axis < -x->rank() || axis >= x->rank())
      fail(node.label(), ": it scans '", x->name(), "', ", to_string(x->type()), ", along axis ", axis);
    const Dim& dim = (*x->type().dims)[static_cast<size_t>(normalize_axis(axis, x->rank()))];
    if (!dim.known()) continue;
    if (!first) first = x, steps = dim.value();
    if (dim.value() != steps)
      fail(node.label(), ": it scans ", steps, " steps of '", first->name(), "' and ", dim.value(), " of '", x->name(),
           "'");
  }
}

// x holds the states, then the scanned tensors. The body reads both and returns the states and the scanned outputs.
void check_scan(const Node& node) {
  const auto all = static_cast<int64_t>(node.num_inputs()), scanned = node.attr("num_scan_inputs", int64_t{0});
  if (scanned < 1 || scanned > all)
    fail(node.label(), ": its num_scan_inputs is ", scanned, "; it has ", all, " inputs");
  const int64_t states = all - scanned;
  if (node.num_outputs() < states)
    fail(node.label(), ": it has ", node.num_outputs(), " outputs for ", states, " states");
  if (node.subgraphs().size() != 1 || node.subgraphs()[0].attribute != "body") fail(node.label(), ": it has no body");
  const Graph& body = *node.subgraphs()[0].graph;
  expect_count(node, "inputs", body.inputs().size(), static_cast<size_t>(all));
  expect_count(node, "outputs", body.outputs().size(), static_cast<size_t>(node.num_outputs()));
  const auto inputs = static_cast<size_t>(scanned), outputs = static_cast<size_t>(node.num_outputs() - states);
  constexpr int64_t kMostAxes = 64;
  check_list(node, "scan_input_axes", inputs, -kMostAxes, kMostAxes);
  check_list(node, "scan_output_axes", outputs, -kMostAxes, kMostAxes);
  check_list(node, "scan_input_directions", inputs, 0, 1);
  check_list(node, "scan_output_directions", outputs, 0, 1);
  check_steps(node, states);
}

// ---- Attributes

// The activation functions that ONNX names, in the order of GateActivation::Kind, with the default parameters of the
// operators of the same name.
struct KnownActivation {
  const char* name;
  bool has_alpha, has_beta;
  float alpha, beta;
};

constexpr std::array<KnownActivation, 11> kActivations = {{
    {"Sigmoid", false, false, 0, 0},
    {"Tanh", false, false, 0, 0},
    {"Relu", false, false, 0, 0},
    {"LeakyRelu", true, false, 0.01f, 0},
    {"ThresholdedRelu", true, false, 1, 0},
    {"Elu", true, false, 1, 0},
    {"HardSigmoid", true, true, 0.2f, 0.5f},
    {"ScaledTanh", true, true, 1, 1},
    {"Affine", true, true, 1, 0},
    {"Softsign", false, false, 0, 0},
    {"Softplus", false, false, 0, 0},
}};

bool same_word(const std::string& a, const std::string& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  });
}

const KnownActivation& known(GateActivation::Kind kind) { return kActivations[static_cast<size_t>(kind)]; }

GateActivation::Kind kind_of(const Node& node, const std::string& name) {
  for (size_t i = 0; i < kActivations.size(); ++i) {
    if (same_word(name, kActivations[i].name)) return static_cast<GateActivation::Kind>(i);
  }
  fail(node.label(), ": ONNX knows no activation '", name, "'");
}

Recurrence::Cell cell_of(const Node& node) {
  const auto is = [&](const char* cell) { return node.op().find(cell) != std::string::npos; };  // LSTM, LSTMGrad, ..
  return is("LSTM") ? Recurrence::kLstm : is("GRU") ? Recurrence::kGru : Recurrence::kRnn;
}

std::vector<bool> directions_of(const Node& node) {
  const std::string direction = node.attr("direction", "forward");
  if (direction == "forward") return {false};
  if (direction == "reverse") return {true};
  if (direction == "bidirectional") return {false, true};
  fail(node.label(), ": direction is '", direction, "'; it must be forward, reverse or bidirectional");
}

// The notation of an activation in our functions: "Tanh", "HardSigmoid(0.2,0.5)".
std::string written(const GateActivation& a) {
  std::ostringstream out;
  out.precision(9);
  out << a.name();
  if (a.has_alpha()) out << '(' << a.alpha;
  if (a.has_beta()) out << ',' << a.beta;
  if (a.has_alpha()) out << ')';
  return std::move(out).str();
}

GateActivation read(const Node& node, const std::string& text) {
  std::istringstream in(text);
  std::string name;
  std::getline(in, name, '(');
  GateActivation activation{kind_of(node, name)};
  char comma = 0;
  if (activation.has_alpha()) in >> activation.alpha;
  if (activation.has_beta()) in >> comma >> activation.beta;
  if (in.fail()) fail(node.label(), ": '", text, "' is no activation");
  return activation;
}

std::vector<GateActivation> read_list(const Node& node, const std::string& text) {
  std::vector<GateActivation> activations;
  std::istringstream in(text);
  for (std::string word; in >> word;) activations.push_back(read(node, word));
  return activations;
}

// ONNX stores activations in three lists: each function takes the next number of each list that it needs.
std::vector<GateActivation> from_onnx(const Node& node) {
  const auto alphas = node.attr("activation_alpha", std::vector<float>{});
  const auto betas = node.attr("activation_beta", std::vector<float>{});
  size_t alpha = 0, beta = 0;
  std::vector<GateActivation> activations;
  for (const std::string& name : node.find_attr("activations")->strings()) {
    const auto kind = kind_of(node, name);
    activations.push_back({kind, known(kind).alpha, known(kind).beta});
    GateActivation& last = activations.back();
    if (last.has_alpha() && alpha < alphas.size()) last.alpha = alphas[alpha++];
    if (last.has_beta() && beta < betas.size()) last.beta = betas[beta++];
  }
  return activations;
}

std::vector<GateActivation> activations_of(const Node& node, const Recurrence& r) {
  const auto count = static_cast<size_t>(r.directions()) * static_cast<size_t>(r.activations_per_direction());
  const auto* attribute = node.find_attr("activations");
  std::vector<GateActivation> activations;
  if (attribute && attribute->has_s()) {
    activations = read_list(node, attribute->s());
  } else if (attribute) {
    activations = from_onnx(node);
  }
  if (!activations.empty() && activations.size() != count)
    fail(node.label(), " names ", activations.size(), " activations; there are ", count, " to name");
  const GateActivation sigmoid{GateActivation::kSigmoid}, tanh{GateActivation::kTanh};
  while (activations.size() < count) {
    if (r.cell != Recurrence::kRnn) activations.push_back(sigmoid);
    activations.push_back(tanh);
    if (r.cell == Recurrence::kLstm) activations.push_back(tanh);
  }
  return activations;
}

}  // namespace

const char* GateActivation::name() const { return known(kind).name; }
bool GateActivation::has_alpha() const { return known(kind).has_alpha; }
bool GateActivation::has_beta() const { return known(kind).has_beta; }

bool is_recurrent(const Node& node) { return node.is("RNN") || node.is("GRU") || node.is("LSTM"); }

Recurrence find_recurrence(const Node& node) {
  Recurrence r;
  r.cell = cell_of(node);
  r.backwards = directions_of(node);
  r.activations = activations_of(node, r);
  r.clip = node.attr("clip", 0.0f);
  r.input_forget = node.attr("input_forget", 0) != 0;
  r.linear_before_reset = node.attr("linear_before_reset", 0) != 0;
  r.batch_major = node.attr("layout", 0) != 0;
  r.round_operands = node.attr("round_operands", 0) != 0;
  r.round_gates = node.attr("round_gates", 0) != 0;
  return r;
}

int outputs_in_training(const Recurrence& r) {
  if (r.cell == Recurrence::kLstm) return 5;
  return r.cell == Recurrence::kRnn ? 2 : r.linear_before_reset ? 4 : 3;
}

Attrs attributes_of(const Recurrence& r) {
  Attrs attrs = {{"direction", r.directions() == 2 ? "bidirectional" : r.backwards[0] ? "reverse" : "forward"}};
  std::string activations;
  for (const GateActivation& a : r.activations) activations += (activations.empty() ? "" : " ") + written(a);
  attrs.emplace_back("activations", activations);
  if (r.clip != 0) attrs.emplace_back("clip", r.clip);
  if (r.input_forget) attrs.emplace_back("input_forget", 1);
  if (r.linear_before_reset) attrs.emplace_back("linear_before_reset", 1);
  if (r.batch_major) attrs.emplace_back("layout", 1);
  if (r.round_operands) attrs.emplace_back("round_operands", 1);
  if (r.round_gates) attrs.emplace_back("round_gates", 1);
  return attrs;
}

Node* put_sequence_first(Node* node) {
  // The permutation that makes Y batch-first: [sequence, direction, batch, ..] becomes [batch, sequence, ..].
  static const std::vector<int64_t> kBatchOfYFirst = {2, 0, 1, 3}, kExchanged = {1, 0, 2};
  Graph& graph = node->graph();
  Builder b(&graph, node);
  std::vector<Var> inputs;
  for (int i = 0; i < node->num_inputs(); ++i) {
    inputs.push_back(b.var(node->input(i)));
    if (!inputs.back() || (i != 0 && i != 5 && i != 6)) continue;  // X and the initial states
    b.set_name(node->input(i)->name() + "/sequence_first");
    inputs.back() = transpose(inputs.back(), kExchanged);
  }
  b.set_name(node->op());
  node->set_attr("layout", 0);
  const auto outputs = b.like(*node, inputs, node->num_outputs());
  std::vector<std::pair<Value*, std::string>> names;
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (!node->output(i)) continue;
    names.emplace_back(nullptr, node->output(i)->name());
    const auto& order = i == 0 ? kBatchOfYFirst : kExchanged;
    names.back().first = transpose(outputs[static_cast<size_t>(i)], order).value();
    graph.replace(node->output(i), names.back().first);
  }
  graph.remove(node);
  for (const auto& [value, name] : names) {
    if (!graph.find(name)) graph.rename(value, name);
  }
  return names.empty() ? nullptr : names[0].first->producer()->input(0)->producer();
}

std::vector<Operator> recurrent_operators() {
  return {
      Operator{"RNN", kRnn, "", kOneFloat, check_forward}
          .in_precision(PrecisionRole::kRecurrent)
          .weights_at({1, 2, 3})
          .counting(multiply_adds_of_recurrence),
      Operator{"GRU", kGru, "", kOneFloat, check_forward}
          .in_precision(PrecisionRole::kRecurrent)
          .weights_at({1, 2, 3})
          .counting(multiply_adds_of_recurrence),
      Operator{"LSTM", kLstm, "", kOneFloat, check_forward}
          .in_precision(PrecisionRole::kRecurrent)
          .weights_at({1, 2, 3, 7})
          .counting(multiply_adds_of_recurrence),
      Operator{"RNNTrain", kRnnTrain, kDomain, kOneFloat, check_forward, kRecurrence}.narrow({0, 1, 2, 5}, {0}),
      Operator{"GRUTrain", kGruTrain, kDomain, kOneFloat, check_forward, kRecurrence}.narrow({0, 1, 2, 5}, {0, 2, 3}),
      Operator{"LSTMTrain", kLstmTrain, kDomain, kOneFloat, check_forward, kRecurrence}.narrow({0, 1, 2, 5}, {0, 3}),
      Operator{"RNNGrad", kRnnGrad, kDomain, kOneFloat, check_backward, kRecurrence}.narrow({0, 2, 3, 4}, {0}),
      Operator{"GRUGrad", kGruGrad, kDomain, kOneFloat, check_backward, kRecurrence}.narrow({0, 2, 3, 4, 5, 6}, {0, 3}),
      Operator{"LSTMGrad", kLstmGrad, kDomain, kOneFloat, check_backward, kRecurrence}.narrow({0, 2, 5, 6, 8}, {0}),
      {"Scan", "x* -> y*", "", kOfSchema, check_scan},
      Operator{"If", "x* -> y*"}.sized_by_inputs({0}),  // where its branches give different shapes
  };
}

}  // namespace onnx_train
