#include "onnx_passes/operators/recurrent.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>
#include <string>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

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

}  // namespace onnx_train
