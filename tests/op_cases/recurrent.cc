#include "tests/op_cases/op_case.h"

namespace onnx_train {

namespace {

struct Sizes {
  int64_t steps, batch, directions, input, hidden;
};

OpInput absent() {
  OpInput input;
  input.absent = true;
  return input;
}

OpInput lengths(const std::vector<int32_t>& values) {
  return {{}, 0, 0, {}, Tensor::of<int32_t>({static_cast<int64_t>(values.size())}, values), DType::kInt32};
}

std::string direction_of(const Sizes& s, bool reverse) {
  return s.directions == 2 ? "bidirectional" : reverse ? "reverse" : "forward";
}

// x w r b lens h0 of an operator with `gates` gates; b, lens and h0 as asked for.
std::vector<OpInput> inputs_of(const Sizes& s, int64_t gates, bool bias, const std::vector<int32_t>& lens, bool h0) {
  return {{{s.steps, s.batch, s.input}},
          {{s.directions, gates * s.hidden, s.input}},
          {{s.directions, gates * s.hidden, s.hidden}},
          bias ? OpInput{{s.directions, 2 * gates * s.hidden}} : absent(),
          lens.empty() ? absent() : lengths(lens),
          h0 ? OpInput{{s.directions, s.batch, s.hidden}} : absent()};
}

constexpr Sizes kPlain = {4, 3, 1, 5, 6}, kBoth = {3, 4, 2, 2, 3}, kSmall = {1, 1, 1, 1, 1}, kWide = {3, 37, 1, 4, 20};
const std::vector<int32_t> kLengths = {2, 4, 1}, kLengthsOfFour = {3, 1, 2, 0};

// Sums in another order may round to the next bfloat16. That nearly all do not: tests/kernels/recurrent_test.cc.
constexpr double kOneRounding = 0x1p-7;

constexpr const char* kSaved =
    "outputs saved for the backward pass have none; the rows of ONNX's operator hold the others";

// The rows of our functions in mixed precision, beside those in float32 or float64.
void add_rounding(std::vector<OpCase>* cases) {
  const size_t end = cases->size();
  for (size_t i = 0; i < end; ++i) {
    OpCase row = (*cases)[i];
    if (row.domain.empty()) continue;
    for (const char* attribute : {"round_operands", "round_gates"}) row.attrs.emplace_back(attribute, 1);
    row.tolerance = kOneRounding;
    row.gradient = false;
    row.no_derivative = "roundings go straight through, unlike differences: test_recurrent.py";
    cases->push_back(std::move(row));
  }
}

// The functions take activations as one string; ONNX's operators would take a list.
void rnn_cases(std::vector<OpCase>* cases) {
  const auto add = [&](const Sizes& s, bool reverse, bool bias, const std::vector<int32_t>& lens, bool h0,
                       const char* activations = nullptr) {
    Attrs attrs = {{"direction", direction_of(s, reverse)}};
    if (activations) attrs.emplace_back("activations", activations);
    const auto inputs = inputs_of(s, 1, bias, lens, h0);
    const OpInput y = {{s.steps, s.directions, s.batch, s.hidden}, 0.1, 0.9},
                  state = {{s.directions, s.batch, s.hidden}};
    cases->push_back({"RNNGrad",
                      {inputs[2], inputs[4], h0 ? state : absent(), y, y, reverse ? absent() : state},
                      attrs,
                      3,
                      "onnx_train",
                      1e-5,
                      nullptr,
                      false});
    cases->push_back({"RNNTrain", inputs, attrs, 2, "onnx_train"});
    if (activations) return;
    attrs.emplace_back("hidden_size", s.hidden);
    cases->push_back({"RNN", inputs, attrs, 2});
    cases->push_back({"RNN", inputs, attrs, 1});
  };
  add(kPlain, false, true, {}, true);
  add(kPlain, true, true, {}, true);
  add(kPlain, false, false, {}, false);
  add(kPlain, true, true, kLengths, true);
  add(kBoth, false, true, kLengthsOfFour, true);
  add(kSmall, false, true, {}, true);
  add(kWide, false, true, {}, true);
  for (const char* f : {"Relu", "LeakyRelu(0.1)", "ThresholdedRelu(0.5)", "HardSigmoid(0.3,0.6)", "Elu(0.5)",
                        "Softsign", "Softplus", "ScaledTanh(1.5,0.75)", "Affine(0.5,0.25)", "Sigmoid"}) {
    add(kPlain, true, true, kLengths, false, f);
  }
  cases->push_back({"RNN",
                    {{{3, 4, 5}}, {{1, 6, 5}}, {{1, 6, 6}}, {{1, 12}}, absent(), {{3, 1, 6}}},
                    {{"layout", 1}, {"hidden_size", 6}},
                    2});
}

void gru_cases(std::vector<OpCase>* cases) {
  const auto add = [&](const Sizes& s, bool reverse, bool bias, const std::vector<int32_t>& lens, bool h0, bool linear,
                       const char* activations = nullptr) {
    Attrs attrs = {{"direction", direction_of(s, reverse)}};
    if (linear) attrs.emplace_back("linear_before_reset", 1);
    if (activations) attrs.emplace_back("activations", activations);
    const auto inputs = inputs_of(s, 3, bias, lens, h0);
    cases->push_back({"GRUTrain", inputs, attrs, linear ? 4 : 3, "onnx_train", 1e-5, nullptr, false});
    cases->back().no_derivative = kSaved;
    const OpInput state = {{s.directions, s.batch, s.hidden}};
    const OpInput values = {{s.steps, s.directions, s.batch, s.hidden}};
    const OpInput gates = {{s.steps, s.batch, s.directions * 3 * s.hidden}, 0.1, 0.9};
    cases->push_back({"GRUGrad",
                      {inputs[2], inputs[4], h0 ? state : absent(), values, gates, linear ? values : absent(), values,
                       reverse ? absent() : state},
                      attrs,
                      linear ? 4 : 3,
                      "onnx_train",
                      1e-5,
                      nullptr,
                      false});
    if (activations) return;
    attrs.emplace_back("hidden_size", s.hidden);
    cases->push_back({"GRU", inputs, attrs, 2});
  };
  for (bool linear : {false, true}) {
    add(kPlain, false, true, {}, true, linear);
    add(kPlain, true, true, {}, true, linear);
    add(kPlain, true, true, kLengths, true, linear);
    add(kPlain, false, false, kLengths, false, linear);
    add(kBoth, false, true, {}, false, linear);
    add(kBoth, false, true, kLengthsOfFour, true, linear, "Sigmoid Tanh Softsign Affine(0.5,0.25)");
    add(kSmall, false, true, {}, true, linear);
    add(kWide, false, true, {}, true, linear);
  }
  cases->push_back({"GRU",
                    {{{3, 4, 5}}, {{1, 18, 5}}, {{1, 18, 6}}, {{1, 36}}, absent(), {{3, 1, 6}}},
                    {{"layout", 1}, {"hidden_size", 6}},
                    2});
}

void lstm_cases(std::vector<OpCase>* cases) {
  const auto add = [&](const Sizes& s, bool reverse, bool bias, const std::vector<int32_t>& lens, bool h0, bool c0,
                       bool peepholes, Attrs attrs = {}) {
    const OpInput state = {{s.directions, s.batch, s.hidden}};
    const OpInput p = peepholes ? OpInput{{s.directions, 3 * s.hidden}} : absent();
    auto inputs = inputs_of(s, 4, bias, lens, h0);
    inputs.push_back(c0 ? state : absent());
    inputs.push_back(p);
    attrs.emplace_back("direction", direction_of(s, reverse));
    cases->push_back({"LSTMTrain", inputs, attrs, 5, "onnx_train", 1e-5, nullptr, false});
    cases->back().no_derivative = kSaved;
    const OpInput values = {{s.steps, s.directions, s.batch, s.hidden}};
    const OpInput gates = {{s.steps, s.batch, s.directions * 4 * s.hidden}, 0.1, 0.9};
    cases->push_back({"LSTMGrad",
                      {inputs[2], inputs[4], h0 ? state : absent(), c0 ? state : absent(), p, values, gates, values,
                       values, reverse ? absent() : state, state},
                      attrs,
                      peepholes ? 5 : 4,
                      "onnx_train",
                      1e-5,
                      nullptr,
                      false});
    for (const Attr& attr : attrs) {
      if (attr.name == "activations") return;
    }
    attrs.emplace_back("hidden_size", s.hidden);
    cases->push_back({"LSTM", inputs, attrs, 3});
  };
  add(kPlain, false, true, {}, true, true, false);
  add(kPlain, true, true, {}, true, true, false);
  add(kPlain, false, false, {}, false, false, false);
  add(kPlain, false, true, kLengths, true, true, false);
  add(kPlain, true, true, kLengths, true, true, true);
  add(kPlain, false, true, {}, false, true, true);
  add(kPlain, false, true, {}, true, true, false, {{"input_forget", 1}});
  add(kPlain, false, true, {}, true, true, true, {{"input_forget", 1}});
  add(kBoth, false, true, {}, true, true, false);
  add(kBoth, false, true, kLengthsOfFour, true, false, true);
  add(kBoth, false, true, {}, false, false, false,
      {{"activations", "Sigmoid Softsign Tanh Softplus Affine(0.5,0.25) ScaledTanh(1.5,0.75)"}});
  add(kSmall, false, true, {}, true, true, false);
  add(kWide, false, true, {}, true, true, false);
  add({2, 0, 1, 3, 4}, false, true, {}, true, true, false);
  const OpInput state = {{3, 1, 6}};
  cases->push_back({"LSTM",
                    {{{3, 4, 5}}, {{1, 24, 5}}, {{1, 24, 6}}, {{1, 48}}, absent(), state, state},
                    {{"layout", 1}, {"hidden_size", 6}},
                    3});
  cases->push_back({"LSTM",
                    {{{4, 3, 5}}, {{1, 24, 5}}, {{1, 24, 6}}, {{1, 48}}},
                    {{"hidden_size", 6}, {"clip", 0.3f}},
                    3,
                    "",
                    1e-5,
                    nullptr,
                    false});
}

}  // namespace

std::vector<OpCase> recurrent_cases() {
  std::vector<OpCase> cases;
  rnn_cases(&cases);
  gru_cases(&cases);
  lstm_cases(&cases);
  add_rounding(&cases);
  return cases;
}

}  // namespace onnx_train
