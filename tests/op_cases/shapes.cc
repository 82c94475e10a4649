#include "tests/op_cases/op_case.h"

namespace onnx_train {
namespace {

OpInput ints(const std::vector<int64_t>& values) {
  return {.shape = {}, .value = Tensor::ints(values), .dtype = DType::kInt64, .constant = true};
}

OpInput x(Shape shape) { return {.shape = std::move(shape)}; }

OpInput bytes(Shape shape) { return {.shape = std::move(shape), .low = 0, .high = 99, .dtype = DType::kUint8}; }

using Ints = std::vector<int64_t>;

std::vector<OpCase> reshapes() {
  return {
      {.op = "Identity", .inputs = {x({2, 3})}},
      {.op = "BitCast",
       .inputs = {bytes({2, 3})},
       .attrs = {{"to", static_cast<int>(DType::kInt8)}},
       .gradient = false,
       .opset = 26},
      {.op = "Reshape", .inputs = {x({2, 6}), ints({-1, 3})}},
      {.op = "Reshape", .inputs = {x({2, 6}), ints({0, 3, 2})}},
      {.op = "Reshape", .inputs = {x({0, 6}), ints({0, 3})}, .attrs = {{"allowzero", 1}}, .dynamic = false},
      {.op = "Flatten", .inputs = {x({2, 3, 4})}, .attrs = {{"axis", 2}}},
      {.op = "Flatten", .inputs = {x({2, 3, 4})}, .attrs = {{"axis", -3}}},
      {.op = "Squeeze", .inputs = {x({2, 1, 3, 1}), ints({1, -1})}},
      {.op = "Squeeze", .inputs = {x({2, 1, 3, 1})}, .dynamic = false},
      {.op = "Unsqueeze", .inputs = {x({2, 3}), ints({0, -1})}},
  };
}

std::vector<OpCase> permutations() {
  return {
      {.op = "Transpose", .inputs = {x({3, 4})}},
      {.op = "Transpose", .inputs = {x({37, 53})}, .attrs = {{"perm", Ints{1, 0}}}},
      {.op = "Transpose", .inputs = {x({2, 3, 4, 5})}, .attrs = {{"perm", Ints{0, 2, 1, 3}}}},
      {.op = "Transpose", .inputs = {x({2, 3, 4, 5})}, .attrs = {{"perm", Ints{3, 1, 0, 2}}}},
      {.op = "Transpose", .inputs = {x({2, 3, 1, 5})}, .attrs = {{"perm", Ints{0, 3, 1, 2}}}},
      {.op = "Transpose", .inputs = {x({0, 3})}},
      {.op = "Transpose", .inputs = {bytes({5, 3, 2})}, .attrs = {{"perm", Ints{2, 0, 1}}}, .gradient = false},
      {.op = "DepthToSpace", .inputs = {x({2, 12, 2, 3})}, .attrs = {{"blocksize", 2}}},
      {.op = "DepthToSpace", .inputs = {x({2, 12, 2, 3})}, .attrs = {{"blocksize", 2}, {"mode", "CRD"}}},
      {.op = "SpaceToDepth", .inputs = {x({2, 3, 4, 6})}, .attrs = {{"blocksize", 2}}},
  };
}

std::vector<OpCase> repetitions() {
  return {
      {.op = "Expand", .inputs = {x({3, 1}), ints({2, 3, 4})}},
      {.op = "Expand", .inputs = {x({1, 4}), ints({3, 1})}, .dynamic = false},
      {.op = "Expand", .inputs = {x({}), ints({2, 2})}},
      {.op = "Expand", .inputs = {x({2, 1}), ints({1, 0})}},
      {.op = "Tile", .inputs = {x({2, 3}), ints({2, 3})}},
      {.op = "Tile", .inputs = {x({2, 1, 2}), ints({1, 4, 2})}},
      {.op = "Tile", .inputs = {x({2, 3}), ints({0, 1})}},
  };
}

std::vector<OpCase> pieces() {
  return {
      {.op = "Concat", .inputs = {x({2, 3}), x({2, 1}), x({2, 0})}, .attrs = {{"axis", 1}}},
      {.op = "Concat", .inputs = {x({2, 3}), x({4, 3})}, .attrs = {{"axis", -2}}},
      {.op = "Concat", .inputs = {x({2})}, .attrs = {{"axis", 0}}},
      {.op = "Concat", .inputs = {bytes({2, 3}), bytes({2, 2})}, .attrs = {{"axis", 1}}, .gradient = false},
      {.op = "Split", .inputs = {x({2, 6}), ints({1, 2, 3})}, .attrs = {{"axis", 1}}, .num_outputs = 3},
      {.op = "Split", .inputs = {x({2, 7})}, .attrs = {{"axis", -1}, {"num_outputs", 3}}, .num_outputs = 3},
      {.op = "Split", .inputs = {x({4, 3})}, .attrs = {{"num_outputs", 2}}, .num_outputs = 2, .dynamic = false},
  };
}

std::vector<OpCase> slices() {
  const auto slice = [](Shape shape, const Ints& starts, const Ints& ends, const Ints& axes, const Ints& steps) {
    OpCase row{.op = "Slice", .inputs = {x(std::move(shape)), ints(starts), ints(ends)}};
    if (!axes.empty()) row.inputs.push_back(ints(axes));
    if (!steps.empty()) row.inputs.push_back(ints(steps));
    return row;
  };
  return {
      slice({4, 5}, {1, 0}, {3, 4}, {}, {}),
      slice({4, 5}, {1}, {-1}, {1}, {}),
      slice({4, 9}, {0}, {1000}, {-1}, {2}),
      slice({4, 9}, {-1}, {-1000}, {1}, {-1}),
      slice({2, 9}, {7}, {1}, {1}, {-3}),
      slice({2, 3, 6}, {1, 5}, {2, 0}, {1, 2}, {1, -2}),
      slice({4, 5}, {3}, {3}, {1}, {}),
      {.op = "SliceGrad",
       .inputs = {x({2, 3}), ints({2, 7}), ints({-1}), ints({-7}), ints({1}), ints({-2})},
       .domain = "onnx_train",
       .gradient = false,
       .dynamic = false},
  };
}

std::vector<OpCase> borders() {
  const auto pad = [](Shape shape, const Ints& pads, const char* mode) {
    return OpCase{.op = "Pad", .inputs = {x(std::move(shape)), ints(pads)}, .attrs = {{"mode", mode}}};
  };
  const OpInput k{.shape = {}, .value = Tensor::scalar<int64_t>(-1), .dtype = DType::kInt64};
  const OpInput lengths{.shape = {}, .value = Tensor::ints({1, 4, 2}), .dtype = DType::kInt64};
  std::vector<OpCase> rows = {
      pad({2, 3}, {1, 0, 2, 3}, "constant"),
      pad({4, 5}, {-1, 2, 1, -2}, "constant"),
      pad({0, 2}, {0, 1, 0, 1}, "constant"),
      {.op = "Pad", .inputs = {x({2, 3}), ints({0, 1, 0, 2}), x({})}},
      {.op = "Pad", .inputs = {x({2, 3, 4}), ints({1, 2}), x({}), ints({-1})}},
      {.op = "Trilu", .inputs = {x({2, 3, 4})}},
      {.op = "Trilu", .inputs = {x({3, 4}), k}, .attrs = {{"upper", 0}}},
      {.op = "ReverseSequence", .inputs = {x({4, 3, 2}), lengths}},
      {.op = "ReverseSequence", .inputs = {x({3, 4}), lengths}, .attrs = {{"batch_axis", 0}, {"time_axis", 1}}},
  };
  for (const char* mode : {"reflect", "edge", "wrap"}) {
    rows.push_back(pad({3, 4}, {0, 2, 0, 3}, mode));
    rows.push_back(pad({2, 3, 4}, {1, 2, 0, 1, 0, 2}, mode));
    rows.push_back({.op = "Pad",
                    .inputs = {x({2, 5}), ints({1, 2}), {.shape = {}, .absent = true}, ints({-1})},
                    .attrs = {{"mode", mode}}});
  }
  return rows;
}

std::vector<OpCase> generators() {
  const auto scalar = [](float v) { return OpInput{.shape = {}, .value = Tensor::scalar<float>(v), .constant = true}; };
  const auto integer = [](int64_t v) {
    return OpInput{.shape = {}, .value = Tensor::scalar<int64_t>(v), .constant = true};
  };
  OpInput limit = scalar(2.2f);
  limit.zero_gradient = true;
  return {
      {.op = "Shape", .inputs = {x({2, 3, 4})}, .attrs = {{"start", 1}}, .gradient = false},
      {.op = "Shape", .inputs = {x({2, 3, 4})}, .attrs = {{"start", -2}, {"end", 7}}, .gradient = false},
      {.op = "Size", .inputs = {x({2, 3})}, .gradient = false},
      {.op = "Constant", .inputs = {}, .attrs = {{"value", Tensor::of<float>({2}, {1, 2})}}, .gradient = false},
      {.op = "ConstantOfShape", .inputs = {ints({2, 3})}, .gradient = false},
      {.op = "ConstantOfShape",
       .inputs = {ints({0, 3})},
       .attrs = {{"value", Tensor::of<int64_t>({1}, {7})}},
       .gradient = false},
      {.op = "Range", .inputs = {integer(10), integer(-1), integer(-3)}, .gradient = false},
      {.op = "Range", .inputs = {scalar(0.5f), limit, scalar(0.25f)}},
      {.op = "EyeLike", .inputs = {{.shape = {3, 4}, .zero_gradient = true}}, .attrs = {{"k", 1}}},
  };
}

// Of one rank alone; tests/distribution has several.
std::vector<OpCase> collectives() {
  return {{.op = "AllGather",
           .inputs = {{{2, 3}}},
           .attrs = {{"ranks", 3}},
           .domain = "onnx_train",
           .gradient = false,
           .dynamic = false},
          {.op = "AllReduce",
           .inputs = {{{2, 3}}, {{2, 3}}, {.value = Tensor::scalar<int64_t>(1)}},
           .domain = "onnx_train",
           .gradient = false},
          {.op = "Reduce",
           .inputs = {{{2, 3}}, {{2, 3}}, {.value = Tensor::scalar<int64_t>(1)}},
           .attrs = {{"root", 0}},
           .domain = "onnx_train",
           .gradient = false},
          {.op = "Broadcast", .inputs = {{{2, 3}}}, .attrs = {{"root", 0}}, .domain = "onnx_train", .gradient = false},
          {.op = "Await", .inputs = {{{2, 3}}, {{2, 3}}}, .domain = "onnx_train", .gradient = false},
          {.op = "Send",
           .inputs = {{{2, 3}}},
           .attrs = {{"to", 0}},
           .num_outputs = 2,
           .domain = "onnx_train",
           .gradient = false},
          {.op = "Receive",
           .inputs = {x({}), ints({2, 3})},
           .attrs = {{"from", 0}},
           .domain = "onnx_train",
           .gradient = false}};
}

}  // namespace

std::vector<OpCase> shape_cases() {
  std::vector<OpCase> all;
  for (auto family : {reshapes, permutations, repetitions, pieces, slices, borders, generators, collectives}) {
    for (OpCase& row : family()) all.push_back(std::move(row));
  }
  return all;
}

}  // namespace onnx_train
