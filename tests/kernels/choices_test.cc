// Choices between ways to compute a node on the CPU, and what a model keeps of them.
#include "kernels/choices/choices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "kernels/choices/cache.h"
#include "kernels/cpu/support/cpu_features.h"
#include "kernels/cpu/support/onednn.h"
#include "kernels/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"
#include "tests/support/forms.h"
#include "tests/support/run_node.h"

namespace onnx_train::choices_test {
namespace {

namespace fs = std::filesystem;

// Forms and where they are kept, in a folder of the test's own.
class CpuChoices : public testing::Test {
 protected:
  CpuChoices() : folder_(testing::TempDir() + "cpu_choices"), timed_(kVariable, "1000"), cache_(kCache, folder_) {
    fs::remove_all(folder_);
  }
  void SetUp() override {
    if (!cpu::has_onednn()) GTEST_SKIP() << "without oneDNN there is one way to compute a large node";
  }

  // A product that is large enough to be timed. The process keeps its choices, so each test has a product of its own.
  Model product() const { return product(rows_); }
  static Model product(int64_t rows) {
    Model model = empty_model();
    Builder b(model.graph.get());
    const Var x = b.var(model.graph->add_input("x", {DType::kFloat, Dims{rows, 192}})),
              w = b.var(model.graph->add_input("w", {DType::kFloat, Dims{192, 320}}));
    model.graph->add_output(matmul(x, w).value());
    return model;
  }

  struct Ran {
    std::string forms;     // of the plan's nodes
    std::string metadata;  // of the session's model
    TensorMap outputs;
    Choices::Timed timed;
  };
  static Ran run(Model model) {
    TensorMap inputs;
    for (const Value* input : model.graph->inputs())
      inputs[input->name()] =
          random_tensor(DType::kFloat, input->type().shape(), static_cast<unsigned>(inputs.size()) + 1);
    Session session(std::move(model));
    Ran ran;
    ran.forms = forms_of(session.plan("predict", shapes_of(inputs)));
    for (const auto& [name, tensor] : session.run("predict", inputs)) ran.outputs[name] = tensor.clone();
    ran.metadata = session.model().metadata(Choices::kMetadata);
    ran.timed = session.choices().timed();
    return ran;
  }

  // The largest of all outputs.
  static double difference(const Ran& ran, const Ran& expected) {
    double most = 0;
    for (const auto& [name, tensor] : expected.outputs)
      most = std::max(most, relative_error(ran.outputs.at(name), tensor));
    return most;
  }

  // Runs the model that make() returns with each form, expects the results of the first one, and counts the forms.
  template <typename F>
  static int forms_that_agree(const F& make) {
    Ran rule;
    return for_each_form([&] {
      const Ran ran = run(make());
      if (rule.forms.empty()) rule = ran;
      EXPECT_LT(difference(ran, rule), 1e-5) << ran.forms;
      return ran.forms;
    });
  }

  size_t files() const {
    return fs::is_directory(folder_ + "/cpu")
               ? static_cast<size_t>(std::distance(fs::directory_iterator(folder_ + "/cpu"), fs::directory_iterator()))
               : 0;
  }

  static constexpr const char *kVariable = "ONNX_TRAIN_TIMED_CHOICES", *kCache = "ONNX_TRAIN_CACHE";
  const std::string folder_;
  const ScopedVariable timed_, cache_;
  inline static int64_t tests = 0;
  const int64_t rows_ = 256 + ++tests;
};

TEST_F(CpuChoices, AreMadeOnceAndKept) {
  const Ran first = run(product());
  EXPECT_EQ(first.timed.nodes, 1);
  EXPECT_GT(first.timed.seconds, 0);
  EXPECT_EQ(files(), 1);
  const Ran second = run(product());
  EXPECT_EQ(second.timed.nodes, 0);
  EXPECT_EQ(second.forms, first.forms);
  EXPECT_EQ(second.metadata, first.metadata);
  EXPECT_EQ(first.metadata.substr(33), first.forms) << "a hash, a space, and the form";
}

// A form that this machine would not choose, from a machine where it was the fastest.
TEST_F(CpuChoices, AModelKeepsThem) {
  const Ran first = run(product());
  std::map<std::string, Ran> by_form;
  for_each_form([&] {
    const Ran ran = run(product());
    by_form[ran.forms.substr(0, ran.forms.size() - 1)] = ran;
    return ran.forms;
  });
  ASSERT_GT(by_form.size(), 1);
  for (const auto& [form, expected] : by_form) {
    Model model = product();
    model.set_metadata(Choices::kMetadata, first.metadata.substr(0, 33) + form + "\n");
    const Ran kept = run(std::move(model));
    EXPECT_EQ(kept.forms, form + "\n");
    EXPECT_EQ(kept.timed.nodes, 0);
    EXPECT_EQ(difference(kept, expected), 0) << form;
  }
  Model model = product();
  model.set_metadata(Choices::kMetadata, first.metadata.substr(0, 33) + "of another machine\nno line\n \n");
  EXPECT_EQ(run(std::move(model)).forms, first.forms);
}

TEST_F(CpuChoices, TheRuleHoldsWhereNothingIsTimed) {
  std::string rule;
  {
    const ScopedVariable off(kVariable, "off");
    rule = run(product()).forms;
  }
  EXPECT_EQ(files(), 0);
  {
    const ScopedVariable first(kVariable, "form=0");
    EXPECT_EQ(run(product()).forms, rule);
  }
  // A file where the folder would be: nothing can be kept, and the next run would have to choose again.
  fs::create_directories(folder_);
  std::ofstream(folder_ + "/cpu") << "in the way";
  const Ran ran = run(product());
  EXPECT_EQ(ran.forms, rule);
  EXPECT_EQ(ran.timed.nodes, 0);
}

TEST_F(CpuChoices, SmallNodesAreNotTimed) {
  const Ran ran = run(product(/*rows=*/8));
  EXPECT_EQ(ran.forms, "");
  EXPECT_EQ(ran.metadata, "");
}

// All ways to compute a product, with transposed operands, a bias, or a sum with what is there.
TEST_F(CpuChoices, AllWaysToMultiplyAreRight) {
  for (const bool is_bfloat16 : {false, true}) {
    if (is_bfloat16 && cpu::isa() < cpu::Isa::kAvx512Bf16) continue;
    for (const int64_t transposed : {0, 1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << is_bfloat16 << " " << transposed);
      const auto rounded = [&](const Var& v) {
        return is_bfloat16 ? cast(cast(v, DType::kBFloat16), DType::kFloat) : v;
      };
      const auto make = [&] {
        Model model = empty_model();
        Builder b(model.graph.get());
        const auto input = [&](const char* name, const Dims& dims) {
          return b.var(model.graph->add_input(name, {DType::kFloat, dims}));
        };
        const Var x = rounded(input("x", transposed & 1 ? Dims{2200, 130} : Dims{130, 2200}));
        const Var w = rounded(input("w", transposed & 2 ? Dims{300, 2200} : Dims{2200, 300}));
        const Attrs attrs = {{"transA", transposed & 1}, {"transB", transposed >> 1}};
        model.graph->add_output(b.op("Gemm", {x, w, input("bias", {300})}, attrs).value());
        model.graph->add_output(b.op("Gemm", {x, w, input("c", {130, 300})}, attrs).value());
        return model;
      };
      EXPECT_GT(forms_that_agree(make), 1);
    }
  }
}

TEST_F(CpuChoices, AllWaysToConvolveAreRight) {
  using Ints = std::vector<int64_t>;
  const Shape x = {16, 9, 9, 32}, w = {32, 32, 3, 3}, y = {16, 9, 9, 32};
  const Attrs attrs = {
      {"pads", Ints{1, 1, 1, 1}}, {"strides", Ints{1, 1}}, {"dilations", Ints{1, 1}}, {"channels_last", 1}};
  for (const int direction : {0, 1, 2}) {
    SCOPED_TRACE(direction);
    const auto make = [&] {
      Model model = empty_model();
      Builder b(model.graph.get());
      const auto input = [&](const char* name, const Shape& shape) {
        return b.var(model.graph->add_input(name, {DType::kFloat, Dims(shape.begin(), shape.end())}));
      };
      const Var made = direction == 0 ? call_lowered(b, "Conv", {input("x", x), input("w", w)}, attrs)
                       : direction == 1
                           ? call_lowered(b, "ConvGradInput", {input("dy", y), input("w", w), b.ints(x)}, attrs)
                           : call_lowered(b, "ConvGradWeight", {input("x", x), input("dy", y), b.ints(w)}, attrs);
      model.graph->add_output(made.value());
      return model;
    };
    EXPECT_GE(forms_that_agree(make), cpu::isa() >= cpu::Isa::kAvx512 ? 2 : 0);
  }
}

}  // namespace
}  // namespace onnx_train::choices_test
