#include "onnx_passes/functions/body.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/ir/error.h"
#include "tests/support/error_of.h"

namespace onnx_train::body_test {
namespace {

using testing::HasSubstr;

const std::vector<Var> kNoInputs;
const Attrs kNoAttributes;
const FunctionCall kCall{kNoInputs, kNoAttributes};

std::string text_of(const FunctionRow& row) { return row.text(kCall).text; }

TEST(Body, ReadsLikeItsFormula) {
  const FunctionRow row = function("TanhGrad (dy, y) => (dx)", [](Term dy, Term y) { return dy * (1 - y * y); });
  EXPECT_EQ(row.op, "TanhGrad");
  EXPECT_EQ(text_of(row), R"(TanhGrad (dy, y) => (dx) {
constant = Constant <value = double {1.0}> ()
cast_like = CastLike (constant, y)
mul = Mul (y, y)
sub = Sub (cast_like, mul)
dx = Mul (dy, sub)
})");
}

TEST(Body, ANumberTakesTheTypeOfTheTensorThatItMeets) {
  const FunctionRow row = function("F <rate: float = 0.1> (x, int64 n) => (y, m)", [](Body& f, Term x, Term n) {
    return Terms{x * (1 - f.attribute("rate")), n + 1};
  });
  const std::string text = text_of(row);
  EXPECT_THAT(text, HasSubstr("F <rate: float = 0.1> (x, n) => (y, m) {"));
  EXPECT_THAT(text, HasSubstr("Constant <value = float {1.0}> ()"));  // a number meets a number
  EXPECT_THAT(text, HasSubstr("CastLike (sub, x)"));
  EXPECT_THAT(text, HasSubstr("Constant <value = int64 {1}> ()"));
}

TEST(Body, ComputesEqualExpressionsOnceAndLeavesOutWhatNoOutputNeeds) {
  const FunctionRow row = function("F (x) => (y)", [](Term x) {
    const Term unused = exp(x);
    return sqrt(x + 2) * sqrt(x + 2);
  });
  EXPECT_EQ(text_of(row), R"(F (x) => (y) {
constant = Constant <value = double {2.0}> ()
cast_like = CastLike (constant, x)
add = Add (x, cast_like)
sqrt = Sqrt (add)
y = Mul (sqrt, sqrt)
})");
}

TEST(Body, AnOutputIsAValueOfItsOwn) {
  const FunctionRow row = function("F (x) => (y, z, w)", [](Term x) { return Terms{x, -x, -x}; });
  EXPECT_EQ(text_of(row), R"(F (x) => (y, z, w) {
y = Identity (x)
z = Neg (x)
w = Identity (z)
})");
}

TEST(Body, WhatDoesNotChangeFromStepToStepIsComputedBeforeTheSteps) {
  const FunctionRow row = function("F (x, w) => (last, all)", [](Body& f, Term x, Term w) {
    return f.scan({f.as(0, w)}, {x}, /*backwards=*/true, [&](const Terms& states, const Terms& elements) {
      const Term next = states[0] + elements[0] * exp(w);
      return Terms{next, states[0]};
    });
  });
  const std::string text = text_of(row);
  EXPECT_LT(text.find("exp = Exp (w)"), text.find("Scan"));
  EXPECT_THAT(text, HasSubstr("(element, element_2) => (identity, identity_2)"));
  EXPECT_THAT(text, HasSubstr("scan_input_directions = [1], scan_output_directions = [1]"));
}

TEST(Body, MistakesAreErrors) {
  const auto error = [](const auto& write) {
    return error_of([&] { text_of(function("F <a> (x) => (y, z)", write)); });
  };
  EXPECT_THAT(error([](Term x) { return x; }), HasSubstr("F <a> (x) => (y, z) gives 1 outputs"));
  EXPECT_THAT(error([](Term x) { return Terms{x, Term(1) + Term(2)}; }), HasSubstr("an operator of literals"));
  EXPECT_THAT(error([](Term x) { return Terms{x, 1}; }), HasSubstr("meets nothing that has a type"));
  EXPECT_THAT(error([](Body& f, Term x) { return Terms{x, f.input("b")}; }), HasSubstr("no input 'b'"));
  EXPECT_THAT(error([](Term x, Term) { return Terms{x, x}; }), HasSubstr("has 1 inputs, of which 2 are taken"));
}

}  // namespace
}  // namespace onnx_train::body_test
