// Recurrent operators as training needs them: LSTMTrain and GRUTrain also give what their gradients read, RNNTrain is
// there for mixed precision, and the gradients LSTMGrad, GRUGrad and RNNGrad undo the steps. What needs no step, the
// products with X and W and the sums for B, is left to ordinary operators (gradients/recurrent.cc).
//
// Sequences come first: x is [T, B, I], y [T, D, B, H] for D directions, h0 and c0 [D, B, H]; the gates of all
// directions lie next to each other, [T, B, D n H], in ONNX's order (i o f c; z r h). A sample whose length is L has no
// steps from L on: y and the gates are zero there, states stay as they were. Names and formulas are those of ONNX's
// operators; a gate's value is that behind its activation function.
//
// In mixed precision (onnx_passes/precision/mixed_precision.h) `round_operands` rounds to bfloat16 what goes into a
// product inside: h, which is then the same number for the next step, y and y_h, and the gradients dgates and dn.
// `round_gates` rounds `gates` and `candidates`, which only the gradient reads. X, W, R and h0 are rounded by the
// caller; c, what is inside a cell and all sums are not.
#include "onnx_passes/functions/cell_body.h"

namespace onnx_train {
namespace {

using Names = std::vector<std::string>;

std::string split(int parts, const std::string& axis) { return concat("num_outputs = ", parts, ", axis = ", axis); }

// a b c = Split (x) in the step.
Names split_in_step(CellBody& body, const std::string& x, const std::string& prefix, int parts) {
  Names names;
  std::string list;
  for (int i = 0; i < parts; ++i) {
    names.push_back(concat(prefix, i));
    list += (i ? ", " : "") + names.back();
  }
  body.step().line(list, " = Split <", split(parts, "-1"), "> (", x, ")");
  return names;
}

// The same outside.
Names split_outside(CellBody& body, const std::string& x, const std::string& prefix, int parts, int axis) {
  Names names;
  std::string list;
  for (int i = 0; i < parts; ++i) {
    names.push_back(concat(prefix, i));
    list += (i ? ", " : "") + names.back();
  }
  body.outer().line(list, " = Split <", split(parts, std::to_string(axis)), "> (", x, ")");
  return names;
}

std::string transposed(CellBody& body, const std::string& matrix) {
  return body.outer_op("Transpose", {matrix}, "perm = [1, 0]");
}

// Σ over steps and samples of aᵀ b, for a [T, B, m] and b [T, B, n].
std::string sum_of_products(CellBody& body, const std::string& a, const std::string& b) {
  const std::string rows = body.outer_op("Flatten", {a}, "axis = 2");
  return body.outer_op("MatMul", {transposed(body, rows), body.outer_op("Flatten", {b}, "axis = 2")});
}

// The two halves of a direction's b: those for W and for R. Only where there is a b.
Names biases(CellBody& body, int64_t direction) {
  const std::string b = body.of_direction("b", direction, 0);
  return split_outside(body, b, concat("b", direction, "_"), 2, 0);
}

// x Wᵀ of one direction, [T, B, n H].
std::string input_product(CellBody& body, int64_t direction) {
  return body.outer_op("MatMul", {"x", transposed(body, body.of_direction("w", direction, 0))});
}

// x Wᵀ + b, of both halves.
std::string biased_input_product(CellBody& body, int64_t direction) {
  const std::string product = input_product(body, direction);
  if (!body.has("b")) return product;
  const Names b = biases(body, direction);
  return body.outer_op("Add", {product, body.outer_op("Add", {b[0], b[1]})});
}

// dy of one direction as the step's "dy_now", if there is one; the step then adds it to the state "dh".
std::string total_dh(CellBody& body, int64_t direction, std::vector<CellBody::Input>* inputs) {
  if (!body.has("dy")) return "dh";
  inputs->push_back({"dy_now", body.of_direction("dy", direction, 1)});
  return body.op("Add", {"dh", "dy_now"});
}

// What h was before each step. y is zero where a sample has no step; backwards its first steps follow such.
std::string previous_h(CellBody& body, int64_t direction, const std::string& h0) {
  const std::string before = body.previous(body.of_direction("y", direction, 1), h0, direction);
  if (!body.has("lens") || !body.recurrence().backwards[static_cast<size_t>(direction)]) return before;
  const std::string axis = body.ints({0});
  const std::string later = body.outer_op("Slice", {body.live(), body.ints({1}), body.ints({INT64_MAX}), axis});
  const std::string last = body.outer_op("Slice", {body.live(), axis, body.ints({1}), axis});
  const std::string live_before = body.outer_op("Concat", {later, last}, "axis = 0");
  return body.outer_op("Where", {live_before, before, h0});
}

// ---- LSTM

// i, o, f = f(x Wᵀ + h Rᵀ + b + p c)    g = g(x Wᵀ + h Rᵀ + b)    c = f c + i g    h = o h(c)
// The output gate's p meets the new c. `cells` is c after each step, [T, D, B, H].
FunctionText lstm_train(const FunctionCall& call) {
  CellBody body("LSTMTrain", {"x", "w", "r", "b", "lens", "h0", "c0", "p"}, {"y", "y_h", "y_c", "gates", "cells"},
                call);
  const Recurrence& rec = body.recurrence();
  Names ys, hs, cs, gates, cells;
  for (int64_t d = 0; d < rec.directions(); ++d) {
    const std::string pre = biased_input_product(body, d);
    const std::string r = transposed(body, body.of_direction("r", d, 0));
    const std::string h0 = body.first_state("h0", d), c0 = body.first_state("c0", d);
    Names p;
    if (body.has("p")) p = split_outside(body, body.of_direction("p", d, 0), concat("p", d, "_"), 3, 0);
    const auto peephole = [&](const std::string& sum, size_t gate, const std::string& c) {
      return p.empty() ? sum : body.op("Add", {sum, body.op("Mul", {p[gate], c})});
    };
    const Names sum = split_in_step(body, body.op("Add", {"pre", body.op("MatMul", {"h", r})}), "sum", 4);
    const std::string i = body.activate(rec.activation(d, 0), peephole(sum[0], 0, "c"));
    const std::string f = rec.input_forget ? body.op("Sub", {body.constant(1), i})
                                           : body.activate(rec.activation(d, 0), peephole(sum[2], 2, "c"));
    const std::string g = body.activate(rec.activation(d, 1), sum[3]);
    const std::string c = body.op("Add", {body.op("Mul", {f, "c"}), body.op("Mul", {i, g})});
    const std::string o = body.activate(rec.activation(d, 0), peephole(sum[1], 1, c));
    const std::string h = body.operand(body.op("Mul", {o, body.activate(rec.activation(d, 2), c)}));
    const std::string next_h = body.where_live(h, "h"), next_c = body.where_live(c, "c");
    const std::string y = body.where_live(h, body.constant(0));
    const std::string values = body.gate_values(body.op("Concat", {i, o, f, g}, "axis = -1"));
    const std::string all = body.where_live(values, body.constant(0));
    const Names results = body.scan({{"h", h0, next_h}, {"c", c0, next_c}}, {{"pre", pre}}, {y, all, next_c},
                                    rec.backwards[static_cast<size_t>(d)]);
    hs.push_back(results[0]), cs.push_back(results[1]);
    ys.push_back(results[2]), gates.push_back(results[3]), cells.push_back(results[4]);
  }
  body.stack("y", ys, 1), body.stack("y_h", hs, 0), body.stack("y_c", cs, 0);
  body.join("gates", gates, 2), body.stack("cells", cells, 1);
  return body.finish();
}

// One step of LSTMGrad in `dh` and `dc`: returns the sums' gradients in the order i o f c, then the next dc.
Names lstm_grad_step(CellBody& body, int64_t d, const std::string& dh, const Names& p) {
  const Recurrence& rec = body.recurrence();
  const Names gate = split_in_step(body, "gates_now", "gate", 4);
  const std::string &i = gate[0], &o = gate[1], &f = gate[2], &g = gate[3];
  const auto sum_gradient = [&](int which, const std::string& y, const std::string& dy) {
    return body.differentiate(rec.activation(d, which), y, dy);
  };
  const std::string hc = body.activate(rec.activation(d, 2), "cells_now");
  const std::string doo = sum_gradient(0, o, body.op("Mul", {dh, hc}));
  std::string dc = body.op("Add", {"dc", sum_gradient(2, hc, body.op("Mul", {dh, o}))});
  if (!p.empty()) dc = body.op("Add", {dc, body.op("Mul", {p[1], doo})});
  const std::string dg = sum_gradient(1, g, body.op("Mul", {dc, i}));
  const std::string to_f = body.op("Mul", {dc, "cells_before"}), to_i = body.op("Mul", {dc, g});
  const std::string di = sum_gradient(0, i, rec.input_forget ? body.op("Sub", {to_i, to_f}) : to_i);
  const std::string df = rec.input_forget ? body.op("Sub", {f, f}) : sum_gradient(0, f, to_f);
  std::string next = body.op("Mul", {dc, f});
  if (!p.empty()) {
    next = body.op("Add", {next, body.op("Add", {body.op("Mul", {p[0], di}), body.op("Mul", {p[2], df})})});
  }
  return {di, doo, df, dg, next};
}

// Backwards through the steps. `dgates` are the gradients of what goes into the gates' activation functions:
//   do = dh h(c) f'    dc += dh o h' + p_o do    dg = dc i g'    di = dc g f'    df = dc c_before f'
//   dc_before = dc f + p_i di + p_f df    dh_before = dgates R    dr = Σ dgatesᵀ h_before
FunctionText lstm_grad(const FunctionCall& call) {
  const bool peepholes = call.inputs.size() > 4 && call.inputs[4];
  Names outputs = {"dgates", "dr", "dh0", "dc0"};
  if (peepholes) outputs.emplace_back("dp");
  CellBody body("LSTMGrad", {"r", "lens", "h0", "c0", "p", "y", "gates", "cells", "dy", "dy_h", "dy_c"}, outputs, call);
  const Recurrence& rec = body.recurrence();
  Names dgates, drs, dhs, dcs, dps;
  const int directions = static_cast<int>(rec.directions());
  const Names gates = split_outside(body, "gates", "gates_", directions, 2);
  for (int64_t d = 0; d < directions; ++d) {
    const bool backwards = rec.backwards[static_cast<size_t>(d)];
    const std::string r = body.of_direction("r", d, 0);
    const std::string h0 = body.first_state("h0", d), c0 = body.first_state("c0", d);
    const std::string cells = body.of_direction("cells", d, 1), before = body.previous(cells, c0, d);
    Names p;
    if (peepholes) p = split_outside(body, body.of_direction("p", d, 0), concat("p", d, "_"), 3, 0);
    std::vector<CellBody::Input> inputs = {
        {"gates_now", gates[static_cast<size_t>(d)]}, {"cells_now", cells}, {"cells_before", before}};
    const std::string dh = total_dh(body, d, &inputs);
    Names step = lstm_grad_step(body, d, dh, p);
    const std::string dc = step.back();
    step.pop_back();
    const std::string dgate = body.where_live(body.operand(body.op("Concat", step, "axis = -1")), body.constant(0));
    const std::string next_dh = body.where_live(body.op("MatMul", {dgate, r}), "dh");
    const Names results = body.scan(
        {{"dh", body.first_state("dy_h", d), next_dh}, {"dc", body.first_state("dy_c", d), body.where_live(dc, "dc")}},
        inputs, {dgate}, !backwards);
    dhs.push_back(results[0]), dcs.push_back(results[1]), dgates.push_back(results[2]);
    drs.push_back(sum_of_products(body, results[2], previous_h(body, d, h0)));
    if (peepholes) {
      const Names parts = split_outside(body, results[2], concat("dgate", d, "_"), 4, 2);
      const auto sum = [&](size_t gate, const std::string& c) {
        return body.outer_op("ReduceSum", {body.outer_op("Mul", {parts[gate], c}), body.ints({0, 1})}, "keepdims = 0");
      };
      const Names sums = {sum(0, before), sum(1, cells), sum(2, before)};
      dps.push_back(body.outer_op("Concat", sums, "axis = 0"));
    }
  }
  body.join("dgates", dgates, 2), body.stack("dr", drs, 0), body.stack("dh0", dhs, 0), body.stack("dc0", dcs, 0);
  if (peepholes) body.stack("dp", dps, 0);
  return body.finish();
}

// ---- GRU

// z, r = f(x Wᵀ + h Rᵀ + b)    g = g(x Wᵀ + (r h) Rᵀ + b), or with linear_before_reset g(x Wᵀ + r n + b), n = h Rᵀ +
// b_R h = (1 - z) g + z h. `candidates` are n, [T, D, B, H].
FunctionText gru_train(const FunctionCall& call) {
  CellBody probe("GRUTrain", {}, {}, call);
  const bool linear = probe.recurrence().linear_before_reset;
  Names outputs = {"y", "y_h", "gates"};
  if (linear) outputs.emplace_back("candidates");
  CellBody body("GRUTrain", {"x", "w", "r", "b", "lens", "h0"}, outputs, call);
  const Recurrence& rec = body.recurrence();
  Names ys, hs, gates, candidates;
  for (int64_t d = 0; d < rec.directions(); ++d) {
    std::string pre = input_product(body, d);
    Names b;
    if (body.has("b")) {
      b = biases(body, d);
      pre = body.outer_op("Add", {pre, linear ? b[0] : body.outer_op("Add", {b[0], b[1]})});
    }
    const std::string rt = transposed(body, body.of_direction("r", d, 0));
    const Names r_of = split_outside(body, rt, concat("r", d, "_"), 3, 1);
    const Names pres = split_in_step(body, "pre", "pre", 3);
    Names recurrent;
    if (linear) {
      std::string product = body.op("MatMul", {"h", rt});
      if (!b.empty()) product = body.op("Add", {product, b[1]});
      recurrent = split_in_step(body, product, "recurrent", 3);
    } else {
      recurrent = {body.op("MatMul", {"h", r_of[0]}), body.op("MatMul", {"h", r_of[1]}), ""};
    }
    const std::string z = body.activate(rec.activation(d, 0), body.op("Add", {pres[0], recurrent[0]}));
    const std::string r = body.activate(rec.activation(d, 0), body.op("Add", {pres[1], recurrent[1]}));
    const std::string reset = linear ? body.op("Mul", {r, recurrent[2]})
                                     : body.op("MatMul", {body.operand(body.op("Mul", {r, "h"})), r_of[2]});
    const std::string g = body.activate(rec.activation(d, 1), body.op("Add", {pres[2], reset}));
    const std::string fresh = body.op("Mul", {body.op("Sub", {body.constant(1), z}), g});
    const std::string h = body.operand(body.op("Add", {fresh, body.op("Mul", {z, "h"})}));
    const std::string zero = body.constant(0);
    const std::string values = body.gate_values(body.op("Concat", {z, r, g}, "axis = -1"));
    Names each = {body.where_live(h, zero), body.where_live(values, zero)};
    if (linear) each.push_back(body.where_live(body.gate_values(recurrent[2]), zero));
    const Names results = body.scan({{"h", body.first_state("h0", d), body.where_live(h, "h")}}, {{"pre", pre}}, each,
                                    rec.backwards[static_cast<size_t>(d)]);
    hs.push_back(results[0]), ys.push_back(results[1]), gates.push_back(results[2]);
    if (linear) candidates.push_back(results[3]);
  }
  body.stack("y", ys, 1), body.stack("y_h", hs, 0), body.join("gates", gates, 2);
  if (linear) body.stack("candidates", candidates, 1);
  return body.finish();
}

// The step of GRUGrad: dz, dr, dg, what goes on to the step before and, with linear_before_reset, dn.
Names gru_grad_step(CellBody& body, int64_t d, const std::string& dh, const std::string& r_matrix, const Names& r_of) {
  const Recurrence& rec = body.recurrence();
  const Names gate = split_in_step(body, "gates_now", "gate", 3);
  const std::string &z = gate[0], &r = gate[1], &g = gate[2];
  const std::string to_g = body.op("Mul", {dh, body.op("Sub", {body.constant(1), z})});
  const std::string dg = body.differentiate(rec.activation(d, 1), g, to_g);
  const std::string to_z = body.op("Mul", {dh, body.op("Sub", {"h_before", g})});
  const std::string dz = body.operand(body.differentiate(rec.activation(d, 0), z, to_z));
  const std::string kept = body.op("Mul", {dh, z});
  if (rec.linear_before_reset) {
    const std::string to_r = body.op("Mul", {dg, "candidates_now"});
    const std::string dr = body.operand(body.differentiate(rec.activation(d, 0), r, to_r));
    const std::string dn = body.operand(body.op("Mul", {dg, r}));
    const std::string all = body.op("Concat", {dz, dr, dn}, "axis = -1");
    return {dz, dr, body.operand(dg), body.op("Add", {kept, body.op("MatMul", {all, r_matrix})}), dn};
  }
  const std::string dg_operand = body.operand(dg), to_reset = body.op("MatMul", {dg_operand, r_of[2]});
  const std::string to_r = body.op("Mul", {to_reset, "h_before"});
  const std::string dr = body.operand(body.differentiate(rec.activation(d, 0), r, to_r));
  const std::string through = body.op("Add", {kept, body.op("Mul", {to_reset, r})});
  const std::string gates = body.op("Add", {body.op("MatMul", {dz, r_of[0]}), body.op("MatMul", {dr, r_of[1]})});
  return {dz, dr, dg_operand, body.op("Add", {through, gates})};
}

// Backwards through the steps. `dgates` are the gradients of what goes into the gates' activation functions:
//   dg = dh (1 - z) g'    dz = dh (h_before - g) f'    dr = f' dg n, or f' (dg R_h) h_before
//   dh_before = dh z + dz R_z + dr R_r + dn R_h, or .. + r (dg R_h)
// `dn` = dg r, [T, B, D H], is the gradient of n, with linear_before_reset.
FunctionText gru_grad(const FunctionCall& call) {
  CellBody probe("GRUGrad", {}, {}, call);
  const bool linear = probe.recurrence().linear_before_reset;
  Names outputs = {"dgates", "dr", "dh0"};
  if (linear) outputs.emplace_back("dn");
  CellBody body("GRUGrad", {"r", "lens", "h0", "y", "gates", "candidates", "dy", "dy_h"}, outputs, call);
  const Recurrence& rec = body.recurrence();
  const int directions = static_cast<int>(rec.directions());
  const Names gates = split_outside(body, "gates", "gates_", directions, 2);
  Names dgates, drs, dhs, dns;
  for (int64_t d = 0; d < directions; ++d) {
    const std::string r = body.of_direction("r", d, 0);
    const Names r_of = split_outside(body, r, concat("r", d, "_"), 3, 0);
    const std::string before = previous_h(body, d, body.first_state("h0", d));
    std::vector<CellBody::Input> inputs = {{"gates_now", gates[static_cast<size_t>(d)]}, {"h_before", before}};
    if (linear) inputs.push_back({"candidates_now", body.of_direction("candidates", d, 1)});
    const Names step = gru_grad_step(body, d, total_dh(body, d, &inputs), r, r_of);
    const std::string zero = body.constant(0);
    Names each = {body.where_live(body.op("Concat", {step[0], step[1], step[2]}, "axis = -1"), zero)};
    if (linear) each.push_back(body.where_live(step[4], zero));
    const Names results = body.scan({{"dh", body.first_state("dy_h", d), body.where_live(step[3], "dh")}}, inputs, each,
                                    !rec.backwards[static_cast<size_t>(d)]);
    dhs.push_back(results[0]), dgates.push_back(results[1]);
    const Names parts = split_outside(body, results[1], concat("dgate", d, "_"), 3, 2);
    const std::string dzr = body.outer_op("Concat", {parts[0], parts[1]}, "axis = 2");
    std::string into_r = results.back(), beside = before;  // dn with h, or dg with r h
    if (linear) {
      dns.push_back(into_r);
    } else {
      into_r = parts[2];
      const Names of = split_outside(body, gates[static_cast<size_t>(d)], concat("gate", d, "_"), 3, 2);
      beside = body.outer_operand(body.outer_op("Mul", {of[1], before}));
    }
    const Names sums = {sum_of_products(body, dzr, before), sum_of_products(body, into_r, beside)};
    drs.push_back(body.outer_op("Concat", sums, "axis = 0"));
  }
  body.join("dgates", dgates, 2), body.stack("dr", drs, 0), body.stack("dh0", dhs, 0);
  if (linear) body.join("dn", dns, 2);
  return body.finish();
}

// ---- RNN

// h = f(x Wᵀ + h Rᵀ + b)
FunctionText rnn_train(const FunctionCall& call) {
  CellBody body("RNNTrain", {"x", "w", "r", "b", "lens", "h0"}, {"y", "y_h"}, call);
  const Recurrence& rec = body.recurrence();
  Names ys, hs;
  for (int64_t d = 0; d < rec.directions(); ++d) {
    const std::string pre = biased_input_product(body, d);
    const std::string r = transposed(body, body.of_direction("r", d, 0));
    const std::string sum = body.op("Add", {"pre", body.op("MatMul", {"h", r})});
    const std::string h = body.operand(body.activate(rec.activation(d, 0), sum));
    const Names results = body.scan({{"h", body.first_state("h0", d), body.where_live(h, "h")}}, {{"pre", pre}},
                                    {body.where_live(h, body.constant(0))}, rec.backwards[static_cast<size_t>(d)]);
    hs.push_back(results[0]), ys.push_back(results[1]);
  }
  body.stack("y", ys, 1), body.stack("y_h", hs, 0);
  return body.finish();
}

// Backwards through the steps: dgates = dh f'    dh_before = dgates R    dr = Σ dgatesᵀ h_before
FunctionText rnn_grad(const FunctionCall& call) {
  CellBody body("RNNGrad", {"r", "lens", "h0", "y", "dy", "dy_h"}, {"dgates", "dr", "dh0"}, call);
  const Recurrence& rec = body.recurrence();
  Names dgates, drs, dhs;
  for (int64_t d = 0; d < rec.directions(); ++d) {
    const std::string r = body.of_direction("r", d, 0);
    std::vector<CellBody::Input> inputs = {{"y_now", body.of_direction("y", d, 1)}};
    const std::string dh = total_dh(body, d, &inputs);
    const std::string dgate =
        body.where_live(body.operand(body.differentiate(rec.activation(d, 0), "y_now", dh)), body.constant(0));
    const std::string next = body.where_live(body.op("MatMul", {dgate, r}), "dh");
    const Names results =
        body.scan({{"dh", body.first_state("dy_h", d), next}}, inputs, {dgate}, !rec.backwards[static_cast<size_t>(d)]);
    dhs.push_back(results[0]), dgates.push_back(results[1]);
    drs.push_back(sum_of_products(body, results[1], previous_h(body, d, body.first_state("h0", d))));
  }
  body.join("dgates", dgates, 2), body.stack("dr", drs, 0), body.stack("dh0", dhs, 0);
  return body.finish();
}

}  // namespace

std::vector<FunctionRow> recurrent_functions() {
  return {
      {"LSTMTrain", lstm_train}, {"LSTMGrad", lstm_grad}, {"GRUTrain", gru_train},
      {"GRUGrad", gru_grad},     {"RNNTrain", rnn_train}, {"RNNGrad", rnn_grad},
  };
}

}  // namespace onnx_train
