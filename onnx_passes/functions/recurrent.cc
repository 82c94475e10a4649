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

// Σ over steps and samples of aᵀ b, for a [T, B, m] and b [T, B, n].
Term sum_of_products(const Term& a, const Term& b) {
  const auto rows = [](const Term& x) { return x.body()->op("Flatten", {x}, "axis = 2"); };
  return matmul(transpose(rows(a), {1, 0}), rows(b));
}

// The two halves of a direction's b: those for W and for R. Only where there is a b.
Terms biases(CellBody& f, int64_t d) { return split(f.of_direction("b", d, 0), 2, 0); }

// x Wᵀ of one direction, [T, B, n H].
Term input_product(CellBody& f, int64_t d) {
  return matmul(f.input("x"), transpose(f.of_direction("w", d, 0), {1, 0}));
}

// x Wᵀ + b, of both halves.
Term biased_input_product(CellBody& f, int64_t d) {
  if (!f.has("b")) return input_product(f, d);
  const Terms b = biases(f, d);
  return input_product(f, d) + (b[0] + b[1]);
}

// What h was before each step. y is zero where a sample has no step; backwards its first steps follow such.
Term previous_h(CellBody& f, int64_t d, const Term& h0) {
  const Term before = f.previous(f.of_direction("y", d, 1), h0, d);
  if (!f.has("lens") || !f.backwards(d)) return before;
  const Term live = f.live();
  const Term live_before = concat({slice(live, {1}, {INT64_MAX}, {0}), slice(live, {0}, {1}, {0})}, 0);
  return where(live_before, before, h0);
}

// The results of all directions, by output.
struct Directions {
  std::vector<Terms> all;
  void add(const Terms& of_direction) {
    all.resize(of_direction.size());
    for (size_t i = 0; i < all.size(); ++i) all[i].push_back(of_direction[i]);
  }
  Term stack(size_t i, int axis) const { return stacked(all[i], axis); }
  Term join(size_t i, int axis) const { return concat(all[i], axis); }
};

// ---- LSTM

// i, o, f = f(x Wᵀ + h Rᵀ + b + p c)    g = g(x Wᵀ + h Rᵀ + b)    c = f c + i g    h = o h(c)
// The output gate's p meets the new c. `cells` is c after each step, [T, D, B, H].
FunctionText lstm_train(const FunctionCall& call) {
  CellBody f("LSTMTrain", "x, w, r, b, lens, h0, c0, p", "y, y_h, y_c, gates, cells", call);
  const Recurrence& rec = f.recurrence();
  Directions all;
  for (int64_t d = 0; d < rec.directions(); ++d) {
    const Term r = transpose(f.of_direction("r", d, 0), {1, 0});
    const Terms p = f.has("p") ? split(f.of_direction("p", d, 0), 3, 0) : Terms();
    const auto gate = [&](const Terms& sums, size_t i, size_t peephole, const Term& c) {
      return f.activate(rec.activation(d, 0), p.empty() ? sums[i] : sums[i] + p[peephole] * c);
    };
    const auto step = [&](const Terms& states, const Terms& elements) {
      const Term &h = states[0], &c = states[1];
      const Terms sums = split(elements[0] + matmul(h, r), 4, -1);
      const Term i = gate(sums, 0, 0, c), forget = rec.input_forget ? 1 - i : gate(sums, 2, 2, c);
      const Term g = f.activate(rec.activation(d, 1), sums[3]), next_c = forget * c + i * g;
      const Term o = gate(sums, 1, 1, next_c), next_h = f.operand(o * f.activate(rec.activation(d, 2), next_c));
      const Term gates = f.gate_values(concat({i, o, forget, g}, -1)), live_c = f.where_live(next_c, c);
      return Terms{f.where_live(next_h, h), live_c, f.where_live(next_h, 0), f.where_live(gates, 0), live_c};
    };
    all.add(
        f.steps({f.first_state("h0", d), f.first_state("c0", d)}, {biased_input_product(f, d)}, f.backwards(d), step));
  }
  return f.text({all.stack(2, 1), all.stack(0, 0), all.stack(1, 0), all.join(3, 2), all.stack(4, 1)});
}

// One step of LSTMGrad in `dh` and `dc`: returns the sums' gradients in the order i o f c, then the next dc.
Terms lstm_grad_step(CellBody& f, int64_t d, const Term& dh, const Term& dc_after, const Terms& elements,
                     const Terms& p) {
  const Recurrence& rec = f.recurrence();
  const Terms gates = split(elements[0], 4, -1);
  const Term &i = gates[0], &o = gates[1], &forget = gates[2], &g = gates[3], &c = elements[1], &c_before = elements[2];
  const auto sum_gradient = [&](int which, const Term& y, const Term& dy) {
    return f.differentiate(rec.activation(d, which), y, dy);
  };
  const Term hc = f.activate(rec.activation(d, 2), c), doo = sum_gradient(0, o, dh * hc);
  Term dc = dc_after + sum_gradient(2, hc, dh * o);
  if (!p.empty()) dc = dc + p[1] * doo;
  const Term dg = sum_gradient(1, g, dc * i), to_f = dc * c_before, to_i = dc * g;
  const Term di = sum_gradient(0, i, rec.input_forget ? to_i - to_f : to_i);
  const Term df = rec.input_forget ? forget - forget : sum_gradient(0, forget, to_f);
  const Term next = dc * forget;
  return {di, doo, df, dg, p.empty() ? next : next + (p[0] * di + p[2] * df)};
}

// Backwards through the steps. `dgates` are the gradients of what goes into the gates' activation functions:
//   do = dh h(c) f'    dc += dh o h' + p_o do    dg = dc i g'    di = dc g f'    df = dc c_before f'
//   dc_before = dc f + p_i di + p_f df    dh_before = dgates R    dr = Σ dgatesᵀ h_before
FunctionText lstm_grad(const FunctionCall& call) {
  const bool peepholes = call.inputs.size() > 4 && call.inputs[4];
  CellBody f("LSTMGrad", "r, lens, h0, c0, p, y, gates, cells, dy, dy_h, dy_c",
             peepholes ? "dgates, dr, dh0, dc0, dp" : "dgates, dr, dh0, dc0", call);
  const int directions = static_cast<int>(f.recurrence().directions());
  const Terms gates = split(f.input("gates"), directions, 2);
  Directions all;
  for (int64_t d = 0; d < directions; ++d) {
    const Term r = f.of_direction("r", d, 0), cells = f.of_direction("cells", d, 1);
    const Term before = f.previous(cells, f.first_state("c0", d), d);
    const Terms p = peepholes ? split(f.of_direction("p", d, 0), 3, 0) : Terms();
    Terms inputs = {gates[static_cast<size_t>(d)], cells, before};
    if (f.has("dy")) inputs.push_back(f.of_direction("dy", d, 1));
    const auto step = [&](const Terms& states, const Terms& elements) {
      const Term &dh = states[0], &dc = states[1];
      Terms sums = lstm_grad_step(f, d, f.has("dy") ? dh + elements[3] : dh, dc, elements, p);
      const Term next_dc = sums.back();
      sums.pop_back();
      const Term dgate = f.where_live(f.operand(concat(sums, -1)), 0);
      return Terms{f.where_live(matmul(dgate, r), dh), f.where_live(next_dc, dc), dgate};
    };
    const Terms results = f.steps({f.first_state("dy_h", d), f.first_state("dy_c", d)}, inputs, !f.backwards(d), step);
    const Term& dgates = results[2];
    Terms outputs = {dgates, sum_of_products(dgates, previous_h(f, d, f.first_state("h0", d))), results[0], results[1]};
    if (peepholes) {
      const Terms parts = split(dgates, 4, 2);
      const auto sum = [](const Term& x) { return reduce_sum(x, {0, 1}, /*keepdims=*/false); };
      outputs.push_back(concat({sum(parts[0] * before), sum(parts[1] * cells), sum(parts[2] * before)}, 0));
    }
    all.add(outputs);
  }
  Terms outputs = {all.join(0, 2), all.stack(1, 0), all.stack(2, 0), all.stack(3, 0)};
  if (peepholes) outputs.push_back(all.stack(4, 0));
  return f.text(outputs);
}

// ---- GRU

// z, r = f(x Wᵀ + h Rᵀ + b)    g = g(x Wᵀ + (r h) Rᵀ + b), or with linear_before_reset g(x Wᵀ + r n + b), n = h Rᵀ +
// b_R h = (1 - z) g + z h. `candidates` are n, [T, D, B, H].
FunctionText gru_train(const FunctionCall& call) {
  const bool linear = call.integer("linear_before_reset") != 0;
  CellBody f("GRUTrain", "x, w, r, b, lens, h0", linear ? "y, y_h, gates, candidates" : "y, y_h, gates", call);
  const Recurrence& rec = f.recurrence();
  Directions all;
  for (int64_t d = 0; d < rec.directions(); ++d) {
    const Terms b = f.has("b") ? biases(f, d) : Terms();
    Term pre = input_product(f, d);
    if (!b.empty()) pre = pre + (linear ? b[0] : b[0] + b[1]);
    const Term r_matrix = transpose(f.of_direction("r", d, 0), {1, 0});
    const Terms r_of = split(r_matrix, 3, 1);
    const auto step = [&](const Terms& states, const Terms& elements) {
      const Term& h = states[0];
      const Terms pres = split(elements[0], 3, -1);
      Terms recurrent = {matmul(h, r_of[0]), matmul(h, r_of[1])};
      if (linear) {
        const Term product = matmul(h, r_matrix);
        recurrent = split(b.empty() ? product : product + b[1], 3, -1);
      }
      const Term z = f.activate(rec.activation(d, 0), pres[0] + recurrent[0]);
      const Term r = f.activate(rec.activation(d, 0), pres[1] + recurrent[1]);
      const Term reset = linear ? r * recurrent[2] : matmul(f.operand(r * h), r_of[2]);
      const Term g = f.activate(rec.activation(d, 1), pres[2] + reset), next = f.operand((1 - z) * g + z * h);
      Terms results = {f.where_live(next, h), f.where_live(next, 0),
                       f.where_live(f.gate_values(concat({z, r, g}, -1)), 0)};
      if (linear) results.push_back(f.where_live(f.gate_values(recurrent[2]), 0));
      return results;
    };
    all.add(f.steps({f.first_state("h0", d)}, {pre}, f.backwards(d), step));
  }
  Terms outputs = {all.stack(1, 1), all.stack(0, 0), all.join(2, 2)};
  if (linear) outputs.push_back(all.stack(3, 1));
  return f.text(outputs);
}

// The step of GRUGrad: what goes on to the step before, dz, dr, dg and, with linear_before_reset, dn, from the gates,
// h_before and the candidates.
Terms gru_grad_step(CellBody& f, int64_t d, const Term& dh, const Terms& elements, const Term& r_matrix) {
  const Recurrence& rec = f.recurrence();
  const Terms gates = split(elements[0], 3, -1);
  const Term &z = gates[0], &r = gates[1], &g = gates[2], &h_before = elements[1];
  const Term dg = f.differentiate(rec.activation(d, 1), g, dh * (1 - z));
  const Term dz = f.operand(f.differentiate(rec.activation(d, 0), z, dh * (h_before - g))), kept = dh * z;
  const auto through_reset = [&](const Term& to_r) {
    return f.operand(f.differentiate(rec.activation(d, 0), r, to_r));
  };
  if (rec.linear_before_reset) {
    const Term dr = through_reset(dg * elements[2]), dn = f.operand(dg * r);
    return {kept + matmul(concat({dz, dr, dn}, -1), r_matrix), dz, dr, f.operand(dg), dn};
  }
  const Terms r_of = split(r_matrix, 3, 0);
  const Term dg_operand = f.operand(dg), to_reset = matmul(dg_operand, r_of[2]);
  const Term dr = through_reset(to_reset * h_before);
  return {(kept + to_reset * r) + (matmul(dz, r_of[0]) + matmul(dr, r_of[1])), dz, dr, dg_operand};
}

// Backwards through the steps. `dgates` are the gradients of what goes into the gates' activation functions:
//   dg = dh (1 - z) g'    dz = dh (h_before - g) f'    dr = f' dg n, or f' (dg R_h) h_before
//   dh_before = dh z + dz R_z + dr R_r + dn R_h, or .. + r (dg R_h)
// `dn` = dg r, [T, B, D H], is the gradient of n, with linear_before_reset.
FunctionText gru_grad(const FunctionCall& call) {
  const bool linear = call.integer("linear_before_reset") != 0;
  CellBody f("GRUGrad", "r, lens, h0, y, gates, candidates, dy, dy_h",
             linear ? "dgates, dr, dh0, dn" : "dgates, dr, dh0", call);
  const int directions = static_cast<int>(f.recurrence().directions());
  const Terms gates = split(f.input("gates"), directions, 2);
  Directions all;
  for (int64_t d = 0; d < directions; ++d) {
    const Term r = f.of_direction("r", d, 0), before = previous_h(f, d, f.first_state("h0", d));
    Terms inputs = {gates[static_cast<size_t>(d)], before};
    if (linear) inputs.push_back(f.of_direction("candidates", d, 1));
    if (f.has("dy")) inputs.push_back(f.of_direction("dy", d, 1));
    const auto step = [&](const Terms& states, const Terms& elements) {
      const Term& dh = states[0];
      const Terms now = gru_grad_step(f, d, f.has("dy") ? dh + elements[linear ? 3 : 2] : dh, elements, r);
      Terms results = {f.where_live(now[0], dh), f.where_live(concat({now[1], now[2], now[3]}, -1), 0)};
      if (linear) results.push_back(f.where_live(now[4], 0));
      return results;
    };
    const Terms results = f.steps({f.first_state("dy_h", d)}, inputs, !f.backwards(d), step);
    const Terms parts = split(results[1], 3, 2);
    Term into_r = results.back(), beside = before;  // dn with h, or dg with r h
    if (!linear) {
      into_r = parts[2];
      beside = f.operand(split(inputs[0], 3, 2)[1] * before);
    }
    const Term dr =
        concat({sum_of_products(concat({parts[0], parts[1]}, 2), before), sum_of_products(into_r, beside)}, 0);
    all.add(linear ? Terms{results[1], dr, results[0], results[2]} : Terms{results[1], dr, results[0]});
  }
  Terms outputs = {all.join(0, 2), all.stack(1, 0), all.stack(2, 0)};
  if (linear) outputs.push_back(all.join(3, 2));
  return f.text(outputs);
}

// ---- RNN

// h = f(x Wᵀ + h Rᵀ + b)
FunctionText rnn_train(const FunctionCall& call) {
  CellBody f("RNNTrain", "x, w, r, b, lens, h0", "y, y_h", call);
  Directions all;
  for (int64_t d = 0; d < f.recurrence().directions(); ++d) {
    const Term r = transpose(f.of_direction("r", d, 0), {1, 0});
    const auto step = [&](const Terms& states, const Terms& elements) {
      const Term h = f.operand(f.activate(f.recurrence().activation(d, 0), elements[0] + matmul(states[0], r)));
      return Terms{f.where_live(h, states[0]), f.where_live(h, 0)};
    };
    all.add(f.steps({f.first_state("h0", d)}, {biased_input_product(f, d)}, f.backwards(d), step));
  }
  return f.text({all.stack(1, 1), all.stack(0, 0)});
}

// Backwards through the steps: dgates = dh f'    dh_before = dgates R    dr = Σ dgatesᵀ h_before
FunctionText rnn_grad(const FunctionCall& call) {
  CellBody f("RNNGrad", "r, lens, h0, y, dy, dy_h", "dgates, dr, dh0", call);
  Directions all;
  for (int64_t d = 0; d < f.recurrence().directions(); ++d) {
    const Term r = f.of_direction("r", d, 0);
    Terms inputs = {f.of_direction("y", d, 1)};
    if (f.has("dy")) inputs.push_back(f.of_direction("dy", d, 1));
    const auto step = [&](const Terms& states, const Terms& elements) {
      const Term dh = f.has("dy") ? states[0] + elements[1] : states[0];
      const Term dsum = f.operand(f.differentiate(f.recurrence().activation(d, 0), elements[0], dh));
      const Term dgate = f.where_live(dsum, 0);
      return Terms{f.where_live(matmul(dgate, r), states[0]), dgate};
    };
    const Terms results = f.steps({f.first_state("dy_h", d)}, inputs, !f.backwards(d), step);
    const Term dr = sum_of_products(results[1], previous_h(f, d, f.first_state("h0", d)));
    all.add({results[1], dr, results[0]});
  }
  return f.text({all.join(0, 2), all.stack(1, 0), all.stack(2, 0)});
}

}  // namespace

std::vector<FunctionRow> recurrent_functions() {
  return {
      {"LSTMTrain", lstm_train}, {"LSTMGrad", lstm_grad}, {"GRUTrain", gru_train},
      {"GRUGrad", gru_grad},     {"RNNTrain", rnn_train}, {"RNNGrad", rnn_grad},
  };
}

}  // namespace onnx_train
