#include "onnx_passes/inference/moved_elements.h"

#include <gtest/gtest.h>

#include "onnx_passes/inference/elements.h"
#include "onnx_passes/inference/inference.h"
#include "tests/support/empty_model.h"

namespace onnx_train::moved_elements_test {
namespace {

constexpr const char* kMatrix = R"(
    line = Constant<value_ints = [1, 2, 3, 4, 5, 6]>()
    shape = Constant<value_ints = [-1, 2]>()
    matrix = Reshape(line, shape)
    flat = Constant<value_ints = [-1]>()
    zero = Constant<value_ints = [0]>()
    one = Constant<value_ints = [1]>()
    two = Constant<value_ints = [2]>()
    last = Constant<value_ints = [-1]>()
    before = Constant<value_ints = [-9223372036854775807]>()
    back = Constant<value_ints = [-2]>()
)";

// The elements of the last node's output, after those of kMatrix, as text; "-" if they are not known.
std::string elements_after(const std::string& inputs, const std::string& nodes) {
  const Model model = from_text("<ir_version: 10, opset_import: [\"\" : 21]> g (" + inputs + ") => (int64[] y) {" +
                                kMatrix + nodes + "}");
  infer_types(model.graph.get());
  const auto elements = elements_of(model.graph->last()->output());
  return elements ? to_string(TensorType{DType::kInt64, *elements}) : "-";
}

TEST(MovedElements, PadsOfPyTorchAreKnownThoughTheyPassThroughAMatrix) {
  EXPECT_EQ(elements_after("float[1] x", R"(
      reversed = Slice(matrix, last, before, zero, last)
      turned = Transpose<perm = [1, 0]>(reversed)
      y = Reshape(turned, flat))"),
            "int64[5,3,1,6,4,2]");
}

TEST(MovedElements, SlicesTakeTheElementsOfTheirSteps) {
  EXPECT_EQ(elements_after("float[1] x", "s = Slice(matrix, one, two, one) y = Reshape(s, flat)"), "int64[2,4,6]");
  EXPECT_EQ(elements_after("float[1] x", "y = Slice(line, last, before, zero, back)"), "int64[6,4,2]");
  EXPECT_EQ(elements_after("float[1] x", "t = Transpose(matrix) y = Reshape(t, flat)"), "int64[1,3,5,2,4,6]");
}

TEST(MovedElements, SizesThatAreSymbolsAreMovedToo) {
  EXPECT_EQ(elements_after("float[N, 3, M, 5] x", R"(
      sizes = Shape(x)
      square = Reshape(sizes, shape)
      turned = Transpose(square)
      y = Reshape(turned, flat))"),
            "int64[N,M,3,5]");
}

TEST(MovedElements, WhatDataDecideIsNotKnown) {
  EXPECT_EQ(elements_after("int64[1] i, int64[1] j", "s = Slice(line, i, j) y = Identity(s)"), "-");
  EXPECT_EQ(elements_after("int64[6] d", R"(
      m = Reshape(d, shape)
      t = Transpose(m)
      y = Reshape(t, flat))"),
            "int64[?,?,?,?,?,?]");
}

}  // namespace
}  // namespace onnx_train::moved_elements_test
