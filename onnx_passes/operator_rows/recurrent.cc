// RNN, GRU and LSTM, their training forms and gradients (functions/recurrent.cc), and Scan, which all of these are.
#include "onnx_passes/operators/recurrent.h"

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/multiply_adds.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// T steps, N samples, D directions, H hidden units, I inputs.

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

}  // namespace

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
