// Every form between which a node may choose (kernels/choices/fastest.h) computes what the CPU computes.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "kernels/cuda/support/device.h"
#include "onnx_passes/functions/functions.h"
#include "runtime/session/session.h"
#include "tests/support/device_network.h"
#include "tests/support/empty_model.h"
#include "tests/support/forms.h"
#include "tests/support/run_node.h"

namespace onnx_train::cuda_forms_test {
namespace {

using Ints = std::vector<int64_t>;

bool has_cudnn() { return cuda_device().description().find(", cuDNN 9.") != std::string::npos; }

// Inputs and outputs of a model; operands, and results that outputs_of rounds, are rounded to `type`.
class Example {
 public:
  explicit Example(DType type) : type_(type), model_(empty_model()), b_(model_.graph.get()) {}

  Builder& builder() { return b_; }
  Var rounded(Var v) const { return type_ == DType::kFloat ? v : cast(cast(v, type_), DType::kFloat); }
  Var input(const std::string& name, const Shape& shape) {
    inputs_[name] = random_tensor(DType::kFloat, shape, static_cast<unsigned>(inputs_.size()) + 1);
    return rounded(b_.var(model_.graph->add_input(name, {DType::kFloat, Dims(shape.begin(), shape.end())})));
  }
  void output(const Var& v) { model_.graph->add_output(v.value()); }

  // Runs the model with each form, and returns all forms.
  std::string expect_as_on_cpu(double tolerance) const {
    const TensorMap expected = Session(clone(model_)).run("predict", inputs_);
    std::string all;
    for_each_form([&] {
      Session session(clone(model_), on(&cuda_device()));
      const std::string forms = forms_of(session.plan("predict", shapes_of(inputs_)));
      for (const auto& [name, tensor] : session.run("predict", inputs_))
        EXPECT_LT(relative_error(tensor, expected.at(name)), tolerance) << name << "\n" << forms;
      all += forms;
      return forms;
    });
    return all;
  }

 private:
  DType type_;
  Model model_;
  Builder b_;
  TensorMap inputs_;
};

// Results are rounded once or twice.
double tolerance_of(DType type) { return type == DType::kFloat ? 1e-5 : type == DType::kBFloat16 ? 0x1p-7 : 0x1p-10; }

bool has(const std::string& forms, const char* form) { return forms.find(form) != std::string::npos; }

TEST(CudaForms, ConvolutionsAndTheirGradientsAreRight) {
  const Shape x = {4, 16, 12, 12}, w = {24, 16, 3, 3}, y = {4, 24, 12, 12};
  const Attrs attrs = {{"pads", Ints{1, 1, 1, 1}}, {"strides", Ints{1, 1}}, {"dilations", Ints{1, 1}}};
  for (const DType type : {DType::kFloat, DType::kBFloat16}) {
    SCOPED_TRACE(name(type));
    Example e(type);
    Builder& b = e.builder();
    const Var at_x = e.input("x", x), at_w = e.input("w", w), dy = e.input("dy", y);
    e.output(e.rounded(b.op("Conv", {at_x, at_w}, attrs)));
    e.output(e.rounded(call(b, "ConvGradInput", {dy, at_w, b.ints(x)}, attrs)));
    e.output(e.rounded(call(b, "ConvGradWeight", {at_x, dy, b.ints(w)}, attrs)));
    const std::string forms = e.expect_as_on_cpu(tolerance_of(type));
    EXPECT_EQ(has(forms, "eng") && has(forms, "as a convolution, eng"), has_cudnn()) << forms;
  }
}

// Windows of another height than width, that lie apart, with other padding at the end than at the beginning.
TEST(CudaForms, TheGradientOfAnInputIsAConvolutionOfFlippedFilters) {
  if (!has_cudnn()) GTEST_SKIP() << "our kernel runs without cuDNN";
  const Shape x = {2, 8, 12, 11}, w = {16, 8, 3, 2}, y = {2, 16, 11, 10};
  const Attrs attrs = {{"pads", Ints{1, 0, 2, 1}}, {"strides", Ints{1, 1}}, {"dilations", Ints{2, 2}}};
  for (const DType type : {DType::kFloat, DType::kFloat16}) {
    SCOPED_TRACE(name(type));
    Example e(type);
    Builder& b = e.builder();
    e.output(e.rounded(call(b, "ConvGradInput", {e.input("dy", y), e.input("w", w), b.ints(x)}, attrs)));
    const std::string forms = e.expect_as_on_cpu(tolerance_of(type));
    EXPECT_TRUE(has(forms, "as a convolution, eng")) << forms;
  }
}

TEST(CudaForms, ProductsAreRightWithSumsBiasesAndResidualsAndInBatches) {
  for (const DType type : {DType::kFloat, DType::kBFloat16}) {
    SCOPED_TRACE(name(type));
    Example e(type);
    const Var x = e.input("x", {40, 24}), w = e.input("w", {24, 32}), dy = e.input("dy", {40, 32});
    const Var bias = e.input("bias", {32});
    e.output(e.rounded(matmul(x, w) + bias));
    e.output(e.rounded(matmul(x, w) + dy));
    e.output(matmul(transpose(dy, {1, 0}), x));
    e.output(reduce_sum(dy, {0}, false));
    e.output(e.rounded(matmul(reshape(x, {2, 40, 12}), reshape(w, {2, 12, 32}))));
    const std::string forms = e.expect_as_on_cpu(tolerance_of(type));
    EXPECT_TRUE(has(forms, "sums apart, algorithm 0") && has(forms, "one by one, algorithm 0")) << forms;
  }
}

// By cuDNN's plans, by a product of cuBLASLt and a kernel of ours and, for GELU with tanh, by cuBLASLt's epilogue.
TEST(CudaForms, ProductsWithActivationsAreRight) {
  if (!has_cudnn()) GTEST_SKIP() << "the nodes stay apart without cuDNN";
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const bool is_tanh : {false, true}) {
      if (type == DType::kFloat16 && !is_tanh) continue;  // cuDNN compiles each product for half a second
      for (const bool reads_operand : {false, true}) {
        SCOPED_TRACE(testing::Message() << name(type) << is_tanh << reads_operand);
        Example e(type);
        const Var x = e.input("x", {21, 16}), w = e.input("w", {16, 24}), bias = e.input("bias", {24});
        const Var dy = e.input("dy", {21, 24});
        const Var operand = e.rounded(matmul(x, w) + bias);
        e.output(e.rounded(operand.builder().op("Gelu", {operand}, {{"approximate", is_tanh ? "tanh" : "none"}})));
        if (reads_operand) e.output(e.rounded(tanh(operand)));
        const Var dx = e.rounded(matmul(dy, transpose(w, {1, 0})));
        e.output(e.rounded(call(dx.builder(), is_tanh ? "GeluTanhGrad" : "GeluGrad", {dx, x})));
        const std::string forms = e.expect_as_on_cpu(tolerance_of(type));
        EXPECT_TRUE(has(forms, "cuDNN, eng") && has(forms, "activation apart, algorithm 0")) << forms;
        EXPECT_EQ(has(forms, "cuBLASLt, algorithm 0"), is_tanh) << forms;
      }
    }
  }
}

TEST(CudaForms, TheGradientOfReluInAProductIsRight) {
  if (!has_cudnn()) GTEST_SKIP() << "the nodes stay apart without cuDNN";
  Example e(DType::kBFloat16);
  const Var y = e.input("y", {21, 16}), w = e.input("w", {16, 24}), dy = e.input("dy", {21, 24});
  const Var dx = e.rounded(matmul(dy, transpose(w, {1, 0})));
  e.output(e.rounded(call(dx.builder(), "ReluGrad", {dx, y})));
  const std::string forms = e.expect_as_on_cpu(tolerance_of(DType::kBFloat16));
  EXPECT_TRUE(has(forms, "activation apart, algorithm 0")) << forms;
}

struct Recurrent {
  const char* op;
  int64_t gates;
  std::vector<int> saved;  // outputs of the training form that the gradient reads, after y
  Attrs attrs = {};
};

// Step by step and in one kernel, forward and backward: for two directions, samples that end early, a number of units
// that nothing divides, and one whose rows of R several warps share. There are as many multiprocessors as an H200 has.
TEST(CudaForms, RecurrentOperatorsAndTheirGradientsAreRight) {
  const ScopedVariable processors("GPU_HOST_PROCESSORS", "132");
  const std::vector<Recurrent> operators = {
      {"LSTM", 4, {3, 4}}, {"GRU", 3, {2}}, {"GRU", 3, {2, 3}, {{"linear_before_reset", 1}}}, {"RNN", 1, {}}};
  struct Case {
    int64_t steps, batch, directions, hidden;
    std::vector<int32_t> lengths;
  };
  for (const Recurrent& recurrent : operators) {
    for (const auto& [steps, batch, directions, hidden, lengths] :
         std::vector<Case>{{4, 5, 2, 21, {4, 1, 0, 3, 2}}, {2, 6, 1, 144, {}}, {2, 3, 1, 300, {}}}) {
      if (hidden == 300 && recurrent.gates != 1) continue;  // 1 MB of R for each gate
      SCOPED_TRACE(testing::Message() << recurrent.op << recurrent.attrs.size() << " of " << hidden << " units");
      Attrs attrs = recurrent.attrs;
      attrs.emplace_back("direction", directions == 2 ? "bidirectional" : "reverse");
      Example e(DType::kFloat);
      Builder& b = e.builder();
      const int64_t rows = recurrent.gates * hidden;
      const Shape state = {directions, batch, hidden}, values = {steps, directions, batch, hidden};
      const Var scale = b.scalar(DType::kFloat, 1 / std::sqrt(static_cast<double>(hidden)));
      const Var x = e.input("x", {steps, batch, 3}), w = e.input("w", {directions, rows, 3});
      const Var r = e.input("r", {directions, rows, hidden}) * scale, bias = e.input("b", {directions, 2 * rows});
      const Var lens = lengths.empty() ? Var() : b.constant(Tensor::of<int32_t>({batch}, lengths));
      const Var h0 = e.input("h0", state), dy = e.input("dy", values), dy_h = e.input("dy_h", state);
      std::vector<Var> inputs = {x, w, r, bias, lens, h0};
      const bool is_lstm = recurrent.gates == 4;
      const Var c0 = is_lstm ? e.input("c0", state) : Var(),
                p = is_lstm ? e.input("p", {directions, 3 * hidden}) : Var();
      if (is_lstm) inputs.insert(inputs.end(), {c0, p});
      const int outputs = is_lstm ? 5 : 2 + static_cast<int>(recurrent.saved.size());
      const std::vector<Var> y = call(b, concat(recurrent.op, "Train"), outputs, inputs, attrs);
      for (const Var& output : y) e.output(output);
      std::vector<Var> of_gradient = {r, lens, h0};
      if (is_lstm) of_gradient.insert(of_gradient.end(), {c0, p});
      of_gradient.push_back(y[0]);
      for (const int i : recurrent.saved) of_gradient.push_back(y[static_cast<size_t>(i)]);
      if (recurrent.gates == 3 && recurrent.saved.size() == 1) of_gradient.emplace_back();  // candidates
      of_gradient.insert(of_gradient.end(), {dy, dy_h});
      if (is_lstm) of_gradient.push_back(e.input("dy_c", state));
      const int gradients = is_lstm ? 5 : 3;
      for (const Var& output : call(b, concat(recurrent.op, "Grad"), gradients, of_gradient, attrs)) e.output(output);
      const std::string forms = e.expect_as_on_cpu(1e-5);
      EXPECT_TRUE(has(forms, "step by step") && has(forms, "one kernel of ")) << forms;
    }
  }
}

}  // namespace
}  // namespace onnx_train::cuda_forms_test
