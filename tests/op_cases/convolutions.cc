#include "tests/op_cases/op_case.h"

namespace onnx_train {
namespace {

void add_convolutions(std::vector<OpCase>& cases) {
  const auto add = [&](Shape x, Shape w, Attrs attrs, bool bias = false) {
    const int64_t outs = w[0];
    std::vector<OpInput> inputs = {{std::move(x)}, {std::move(w)}};
    if (bias) inputs.push_back({{outs}});
    cases.push_back({.op = "Conv", .inputs = std::move(inputs), .attrs = std::move(attrs)});
  };
  add({2, 3, 8, 9}, {4, 3, 3, 3}, {});
  add({2, 3, 8, 9}, {4, 3, 3, 3}, {{"pads", Ints{1, 1, 1, 1}}}, true);
  add({2, 3, 8, 9}, {4, 3, 3, 2}, {{"pads", Ints{0, 1, 2, 1}}, {"strides", Ints{2, 3}}}, true);
  add({2, 3, 9, 9}, {4, 3, 3, 3}, {{"dilations", Ints{2, 3}}, {"pads", Ints{2, 1, 0, 3}}});
  add({2, 3, 9, 9}, {4, 3, 3, 3}, {{"dilations", Ints{2, 1}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}});
  add({2, 4, 7, 7}, {6, 2, 3, 3}, {{"group", 2}, {"pads", Ints{1, 1, 1, 1}}}, true);
  add({2, 16, 7, 7}, {16, 1, 3, 3}, {{"group", 16}, {"pads", Ints{1, 1, 1, 1}}}, true);  // depthwise
  add({2, 4, 8, 8}, {8, 1, 3, 3}, {{"group", 4}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}});
  add({2, 16, 5, 5}, {32, 16, 1, 1}, {}, true);
  add({2, 8, 6, 6}, {4, 8, 1, 1}, {{"strides", Ints{2, 2}}});  // elements that no window touches
  add({2, 3, 8, 8}, {4, 3, 2, 2}, {{"strides", Ints{3, 3}}});
  add({1, 1, 1, 1}, {1, 1, 1, 1}, {}, true);
  add({0, 3, 8, 8}, {4, 3, 3, 3}, {}, true);
  add({2, 3, 9, 8}, {4, 3, 3, 4}, {{"auto_pad", "SAME_UPPER"}, {"strides", Ints{2, 3}}});
  add({2, 3, 9, 8}, {4, 3, 3, 4}, {{"auto_pad", "SAME_LOWER"}, {"strides", Ints{2, 3}}});
  add({2, 3, 9, 8}, {4, 3, 3, 4}, {{"auto_pad", "SAME_LOWER"}, {"dilations", Ints{2, 1}}});
  add({2, 3, 9, 8}, {4, 3, 3, 4}, {{"auto_pad", "VALID"}, {"strides", Ints{2, 1}}}, true);
  add({2, 3, 11}, {4, 3, 3}, {{"strides", Ints{2}}, {"pads", Ints{1, 2}}}, true);
  add({2, 4, 11}, {4, 1, 4}, {{"group", 4}, {"dilations", Ints{2}}});
  add({2, 3, 5, 6, 4}, {4, 3, 3, 2, 3}, {{"strides", Ints{1, 2, 1}}, {"pads", Ints{1, 0, 1, 1, 1, 0}}}, true);
  add({2, 4, 4, 4, 4}, {4, 2, 2, 2, 2}, {{"group", 2}});
}

void add_transposed_convolutions(std::vector<OpCase>& cases) {
  const auto add = [&](Shape x, Shape w, Attrs attrs, int64_t bias = 0) {
    std::vector<OpInput> inputs = {{std::move(x)}, {std::move(w)}};
    if (bias > 0) inputs.push_back({{bias}});
    cases.push_back({.op = "ConvTranspose", .inputs = std::move(inputs), .attrs = std::move(attrs)});
  };
  add({2, 3, 4, 5}, {3, 4, 3, 3}, {});
  add({2, 3, 4, 5}, {3, 4, 3, 3}, {{"strides", Ints{2, 3}}, {"pads", Ints{1, 0, 1, 2}}}, 4);
  add({2, 3, 4, 5}, {3, 4, 2, 2}, {{"strides", Ints{2, 2}}}, 4);
  add({2, 3, 4, 5}, {3, 4, 3, 3}, {{"strides", Ints{2, 3}}, {"output_padding", Ints{1, 2}}, {"pads", Ints{1, 1, 1, 1}}},
      4);
  add({2, 4, 4, 5}, {4, 3, 3, 3}, {{"group", 2}, {"dilations", Ints{2, 1}}, {"strides", Ints{2, 1}}}, 6);
  add({2, 3, 4, 5}, {3, 4, 3, 3}, {{"strides", Ints{2, 2}}, {"auto_pad", "SAME_UPPER"}});
  add({2, 3, 4, 5}, {3, 4, 3, 3}, {{"strides", Ints{2, 2}}, {"auto_pad", "SAME_LOWER"}}, 4);
  add({2, 3, 4, 5}, {3, 4, 3, 3}, {{"strides", Ints{2, 2}}, {"output_shape", Ints{8, 10}}});
  add({2, 3, 4, 5}, {3, 4, 3, 3},
      {{"strides", Ints{3, 2}}, {"output_shape", Ints{13, 12}}});  // more than windows reach
  add({2, 3, 6}, {3, 2, 4}, {{"strides", Ints{2}}, {"pads", Ints{1, 1}}}, 2);
  add({1, 2, 3, 3, 3}, {2, 3, 2, 2, 2}, {{"strides", Ints{2, 2, 2}}}, 3);
  add({0, 3, 4, 5}, {3, 4, 3, 3}, {}, 4);
}

void add_convolution_gradients(std::vector<OpCase>& cases) {
  const auto add = [&](Shape x, Shape w, Shape y, const Attrs& attrs) {
    cases.push_back({.op = "ConvGradInput",
                     .inputs = {{y}, {w}, sizes(x)},
                     .attrs = attrs,
                     .domain = "onnx_train",
                     .gradient = false,
                     .dynamic = false});
    cases.push_back({.op = "ConvGradWeight",
                     .inputs = {{x}, {y}, sizes(w)},
                     .attrs = attrs,
                     .num_outputs = 2,
                     .domain = "onnx_train",
                     .gradient = false,
                     .dynamic = false});
  };
  add({2, 4, 8, 9}, {6, 2, 3, 2}, {2, 6, 4, 4},
      {{"group", 2}, {"strides", Ints{2, 2}}, {"dilations", Ints{1, 2}}, {"pads", Ints{1, 0, 1, 1}}});
  add({2, 16, 6, 6}, {32, 16, 3, 3}, {2, 32, 6, 6},
      {{"group", 1}, {"strides", Ints{1, 1}}, {"dilations", Ints{1, 1}}, {"pads", Ints{1, 1, 1, 1}}});
  add({2, 3, 7}, {3, 1, 2}, {2, 3, 3},
      {{"group", 3}, {"strides", Ints{2}}, {"dilations", Ints{1}}, {"pads", Ints{0, 0}}});
  add({1, 2, 4, 4, 4}, {2, 2, 3, 3, 3}, {1, 2, 4, 4, 4},
      {{"group", 1}, {"strides", Ints{1, 1, 1}}, {"dilations", Ints{1, 1, 1}}, {"pads", Ints{1, 1, 1, 1, 1, 1}}});
}

void add_unpools(std::vector<OpCase>& cases) {
  // As many indices as elements, all different, out of [0, places).
  const auto add = [&](const Shape& x, int64_t places, const Attrs& attrs, const Ints& output_shape = {}) {
    Tensor indices(DType::kInt64, x);
    for (int64_t i = 0; i < indices.size(); ++i) {
      indices.set(i, static_cast<double>((i * places / indices.size() + 1) % places));
    }
    const OpInput none = {.shape = x, .low = 0, .high = 1, .dtype = DType::kInt64};  // of an empty batch
    std::vector<OpInput> inputs = {{x}, indices.size() > 0 ? OpInput{.value = indices} : none};
    if (!output_shape.empty()) {
      inputs.push_back({.value = Tensor::of<int64_t>({std::ssize(output_shape)}, output_shape), .constant = true});
    }
    cases.push_back({.op = "MaxUnpool", .inputs = inputs, .attrs = attrs, .dynamic = false});
  };
  add({2, 3, 2, 3}, 2 * 3 * 4 * 6, {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}});
  add({2, 1, 4}, 2 * 7, {{"kernel_shape", Ints{3}}, {"strides", Ints{2}}, {"pads", Ints{1, 1}}});
  add({1, 2, 2, 2, 2}, 2 * 4 * 4 * 4, {{"kernel_shape", Ints{2, 2, 2}}, {"strides", Ints{2, 2, 2}}});
  add({1, 2, 2, 3}, 2 * 4 * 6, {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}}, {1, 2, 5, 8});
  add({0, 3, 2, 2}, 1, {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}});
}

void add_columns(std::vector<OpCase>& cases) {
  const auto add = [&](const Shape& x, const Shape& image, const Shape& block, const Attrs& attrs) {
    cases.push_back({.op = "Col2Im", .inputs = {{x}, sizes(image), sizes(block)}, .attrs = attrs});
  };
  add({2, 3 * 6, 4 * 3}, {5, 5}, {2, 3}, {});
  add({2, 2 * 9, 3 * 2}, {6, 7}, {3, 3},
      {{"strides", Ints{2, 3}}, {"pads", Ints{1, 0, 1, 2}}, {"dilations", Ints{1, 2}}});
  add({1, 2 * 4, 2 * 2}, {5, 5}, {2, 2}, {{"strides", Ints{3, 3}}});  // places between the windows
  add({2, 3 * 3, 4}, {6}, {3}, {{"strides", Ints{2}}, {"pads", Ints{1, 2}}});
  add({1, 2 * 8, 1 * 2 * 3}, {2, 3, 4}, {2, 2, 2}, {});
  add({0, 4, 9}, {4, 4}, {2, 2}, {});
}

void add_pools(std::vector<OpCase>& cases) {
  const auto add = [&](Shape x, const Attrs& attrs) {
    cases.push_back({.op = "MaxPool", .inputs = {apart(x)}, .attrs = attrs});
    cases.push_back({.op = "AveragePool", .inputs = {{x}}, .attrs = attrs});
    Attrs padded = attrs;
    padded.emplace_back("count_include_pad", 1);
    cases.push_back({.op = "AveragePool", .inputs = {{x}}, .attrs = padded});
  };
  add({2, 3, 6, 8}, {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}});
  add({2, 3, 7, 8}, {{"kernel_shape", Ints{3, 2}}});
  add({2, 3, 7, 8}, {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}});
  add({2, 3, 7, 8},
      {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 3}}, {"pads", Ints{0, 1, 1, 0}}, {"ceil_mode", 1}});
  add({2, 3, 8, 8}, {{"kernel_shape", Ints{2, 3}}, {"dilations", Ints{2, 2}}, {"strides", Ints{1, 2}}});
  add({2, 3, 9, 8}, {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 3}}, {"auto_pad", "SAME_UPPER"}});
  add({2, 3, 9, 8}, {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 3}}, {"auto_pad", "SAME_LOWER"}});
  add({2, 3, 9, 8}, {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 3}}, {"auto_pad", "VALID"}});
  add({2, 3, 11}, {{"kernel_shape", Ints{3}}, {"strides", Ints{2}}, {"ceil_mode", 1}});
  add({2, 2, 5, 4, 6}, {{"kernel_shape", Ints{2, 2, 3}}, {"strides", Ints{2, 1, 2}}, {"pads", Ints{1, 0, 1, 0, 1, 1}}});
  add({2, 3, 8, 9},
      {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 3}}, {"ceil_mode", 1}});  // none behind the input
  add({1, 1, 1, 1}, {{"kernel_shape", Ints{1, 1}}});
  add({0, 3, 6, 6}, {{"kernel_shape", Ints{2, 2}}});
  cases.push_back({.op = "MaxPool",
                   .inputs = {apart({1, 2, 6, 5, 7})},
                   .attrs = {{"kernel_shape", Ints{2, 2, 3}},
                             {"dilations", Ints{2, 1, 2}},
                             {"strides", Ints{1, 2, 1}},
                             {"pads", Ints{1, 0, 1, 0, 1, 1}}}});
  cases.push_back(
      {.op = "MaxPool", .inputs = {apart({2, 3, 6, 8})}, .attrs = {{"kernel_shape", Ints{3, 3}}}, .num_outputs = 2});
  cases.push_back({.op = "MaxPool",
                   .inputs = {{.shape = {2, 3, 6, 8}, .low = 0, .high = 200, .dtype = DType::kUint8}},
                   .attrs = {{"kernel_shape", Ints{2, 2}}},
                   .gradient = false});
  for (const int64_t p : {1, 2, 3}) {
    const OpInput x = {.shape = {2, 3, 7, 8}, .away_from = {0}};
    const Attrs windows = {{"p", p}, {"kernel_shape", Ints{3, 2}}, {"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 1, 1}}};
    cases.push_back({.op = "LpPool", .inputs = {x}, .attrs = windows, .tolerance = 1e-4});
  }
  for (const Shape& x : {Shape{2, 3, 5, 6}, Shape{2, 3, 7}, Shape{1, 2, 3, 4, 2}, Shape{0, 3, 4, 4}}) {
    cases.push_back({.op = "GlobalAveragePool", .inputs = {{x}}});
    cases.push_back({.op = "GlobalMaxPool", .inputs = {apart(x)}});
    for (const int64_t p : {1, 2, 3}) {
      cases.push_back({.op = "GlobalLpPool", .inputs = {{.shape = x, .away_from = {0}}}, .attrs = {{"p", p}}});
    }
  }
}

void add_pool_gradients(std::vector<OpCase>& cases) {
  const Attrs windows = {
      {"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 3}}, {"dilations", Ints{1, 1}}, {"pads", Ints{0, 1, 1, 0}}};
  Attrs ceil = windows, include_pad = windows;
  ceil.emplace_back("ceil_mode", 1);
  include_pad.emplace_back("count_include_pad", 1);
  const OpCase gradient = {.op = "", .inputs = {}, .domain = "onnx_train", .gradient = false, .dynamic = false};
  const auto add = [&](const char* op, std::vector<OpInput> inputs, const Attrs& attrs) {
    OpCase row = gradient;
    row.op = op;
    row.inputs = std::move(inputs);
    row.attrs = attrs;
    cases.push_back(row);
  };
  add("MaxPoolGrad", {{{2, 3, 3, 3}}, apart({2, 3, 7, 8})}, windows);
  add("MaxPoolGrad", {{{2, 3, 4, 3}}, apart({2, 3, 8, 8})}, ceil);
  add("AveragePoolGrad", {{{2, 3, 3, 3}}, sizes({2, 3, 7, 8})}, windows);
  add("AveragePoolGrad", {{{2, 3, 3, 3}}, sizes({2, 3, 7, 8})}, include_pad);
  add("AveragePoolGrad", {{{2, 3, 4, 3}}, sizes({2, 3, 8, 8})}, include_pad);  // as ceil_mode makes it
}

}  // namespace

std::vector<OpCase> convolution_cases() {
  std::vector<OpCase> cases;
  add_convolutions(cases);
  add_transposed_convolutions(cases);
  add_convolution_gradients(cases);
  add_pools(cases);
  add_unpools(cases);
  add_columns(cases);
  add_pool_gradients(cases);
  return cases;
}

}  // namespace onnx_train
