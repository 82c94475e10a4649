// Convolutions, pools and group normalization on images of [batch, sizes.., channels].
#include "tests/op_cases/op_case.h"

namespace onnx_train {
namespace {

Attrs windows(Ints strides, Ints dilations, Ints pads) {
  return {{"strides", std::move(strides)}, {"dilations", std::move(dilations)}, {"pads", std::move(pads)}};
}

Attrs with(Attrs attrs, const char* name, const Ints& values) {
  attrs.emplace_back(name, values);
  return attrs;
}

Attrs with(Attrs attrs, const char* name, int64_t value) {
  attrs.emplace_back(name, value);
  return attrs;
}

OpCase row(const char* op, std::vector<OpInput> inputs, const Attrs& attrs, int num_outputs = 1) {
  return {.op = op,
          .inputs = std::move(inputs),
          .attrs = with(attrs, "channels_last", 1),
          .num_outputs = num_outputs,
          .domain = "onnx_train",
          .gradient = false,
          .dynamic = false};
}

void add_group_normalizations(std::vector<OpCase>& cases) {
  const auto add = [&](const Shape& x, int64_t groups) {
    const OpInput image = {x, -1, 2}, scale = {{x.back()}, 0.5, 1.5}, bias = {{x.back()}};
    const Attrs attrs = {{"num_groups", groups}, {"epsilon", 1e-3f}};
    cases.push_back(row("GroupNormalization", {image, scale, bias}, attrs));
    cases.push_back(row("GroupNormalizationGrad", {image, scale, {x}}, attrs, 3));
    cases.push_back(row("GroupNormalizationGrad", {image, scale, {x}}, attrs, 1));
  };
  add({2, 5, 7, 6}, 3);
  add({3, 4, 4, 16}, 16);  // InstanceNormalization
  add({2, 9, 300}, 4);
  add({1, 40, 50, 33}, 1);
  add({2, 2, 3, 4, 8}, 2);
  add({1, 1, 3, 1}, 1);
  add({1, 150, 150, 4}, 2);  // several pieces
}

// A convolution from x to y and both of its gradients.
void add_convolution(std::vector<OpCase>& cases, const Shape& x, const Shape& w, const Shape& y, const Attrs& attrs) {
  cases.push_back(row("Conv", {{x}, {w}}, attrs));
  cases.push_back(row("Conv", {{x}, {w}, {{w[0]}}}, attrs));
  cases.push_back(row("ConvGradInput", {{y}, {w}, sizes(x)}, attrs));
  cases.push_back(row("ConvGradWeight", {{x}, {y}, sizes(w)}, attrs, 1));
  cases.push_back(row("ConvGradWeight", {{x}, {y}, sizes(w)}, attrs, 2));
}

void add_all_convolutions(std::vector<OpCase>& cases) {
  const Attrs same = windows({1, 1}, {1, 1}, {1, 1, 1, 1});
  const auto add = [&](const Shape& x, const Shape& w, const Shape& y, const Attrs& attrs) {
    add_convolution(cases, x, w, y, attrs);
  };
  add({2, 6, 7, 16}, {32, 16, 3, 3}, {2, 6, 7, 32}, same);
  add({1, 6, 7, 3}, {5, 3, 3, 3}, {1, 6, 7, 5}, same);
  add({3, 6, 7, 1}, {4, 1, 3, 3}, {3, 6, 7, 4}, same);
  add({2, 6, 7, 4}, {1, 4, 3, 3}, {2, 6, 7, 1}, same);
  add({2, 8, 9, 3}, {4, 3, 3, 2}, {2, 4, 4, 4}, windows({2, 2}, {1, 2}, {1, 0, 1, 1}));
  add({2, 6, 6, 8}, {16, 8, 1, 1}, {2, 3, 3, 16}, windows({2, 2}, {1, 1}, {0, 0, 0, 0}));
  add({2, 7, 7, 4}, {6, 2, 3, 3}, {2, 7, 7, 6}, with(same, "group", 2));
  add({2, 7, 7, 16}, {16, 1, 3, 3}, {2, 7, 7, 16}, with(same, "group", 16));  // depthwise
  add({2, 8, 8, 4}, {8, 1, 3, 3}, {2, 4, 4, 8}, with(windows({2, 2}, {1, 1}, {1, 1, 0, 0}), "group", 4));
  add({2, 9, 9, 16}, {16, 1, 3, 3}, {2, 5, 5, 16}, with(windows({1, 1}, {2, 2}, {0, 0, 0, 0}), "group", 16));
  add({2, 11, 3}, {4, 3, 3}, {2, 6, 4}, windows({2}, {1}, {1, 2}));
  add({2, 11, 4}, {4, 1, 4}, {2, 5, 4}, with(windows({1}, {2}, {0, 0}), "group", 4));
  add({2, 5, 6, 4, 3}, {4, 3, 3, 2, 3}, {2, 5, 3, 2, 4}, windows({1, 2, 1}, {1, 1, 1}, {1, 0, 0, 1, 0, 0}));
  add({1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, windows({1, 1}, {1, 1}, {0, 0, 0, 0}));
  add({0, 6, 7, 3}, {4, 3, 3, 3}, {0, 6, 7, 4}, same);
  // Small images, most of whose windows reach into the padding.
  add({8, 3, 4, 16}, {32, 16, 3, 3}, {8, 3, 4, 32}, same);
  add({15, 4, 5, 30}, {26, 30, 3, 2}, {15, 2, 6, 26}, windows({2, 1}, {1, 2}, {1, 2, 1, 1}));
  add({7, 6, 32}, {32, 32, 5}, {7, 3, 32}, windows({2}, {1}, {2, 2}));
  add({16, 2, 3, 2, 16}, {32, 16, 3, 3, 3}, {16, 2, 3, 2, 32}, windows({1, 1, 1}, {1, 1, 1}, {1, 1, 1, 1, 1, 1}));
  // Weight gradients of several chunks, the last of them smaller, and panels with channels left over.
  add({5, 16, 20, 8}, {32, 8, 3, 3}, {5, 16, 20, 32}, same);
  add({3, 20, 20, 16}, {32, 16, 1, 1}, {3, 20, 20, 32}, windows({1, 1}, {1, 1}, {0, 0, 0, 0}));
  add({3, 20, 20, 24}, {64, 24, 1, 2}, {3, 10, 11, 64}, windows({2, 2}, {1, 1}, {0, 1, 0, 1}));
  add({3, 20, 20, 15}, {32, 15, 1, 1}, {3, 20, 20, 32}, windows({1, 1}, {1, 1}, {0, 0, 0, 0}));
  add({9, 15, 16, 15}, {30, 15, 3, 2}, {9, 8, 15, 30}, windows({2, 1}, {1, 2}, {1, 0, 1, 1}));
  add({3, 700, 16}, {60, 16, 5}, {3, 350, 60}, windows({2}, {1}, {2, 1}));
  add({2, 4, 12, 11, 16}, {32, 16, 2, 2, 2}, {2, 4, 12, 11, 32}, windows({1, 1, 1}, {1, 1, 1}, {1, 1, 1, 0, 0, 0}));
}

void add_all_pools(std::vector<OpCase>& cases) {
  const auto add = [&](const Shape& x, const Shape& y, const Attrs& attrs) {
    const Attrs padded = with(attrs, "count_include_pad", 1);
    cases.push_back(row("MaxPool", {apart(x)}, attrs));
    cases.push_back(row("MaxPoolGrad", {{y}, apart(x)}, attrs));
    cases.push_back(row("AveragePool", {{x}}, attrs));
    cases.push_back(row("AveragePool", {{x}}, padded));
    cases.push_back(row("AveragePoolGrad", {{y}, sizes(x)}, attrs));
    cases.push_back(row("AveragePoolGrad", {{y}, sizes(x)}, padded));
  };
  const auto pool = [](const Ints& kernel, Ints strides, Ints dilations, Ints pads) {
    return with(windows(std::move(strides), std::move(dilations), std::move(pads)), "kernel_shape", kernel);
  };
  add({2, 6, 8, 3}, {2, 3, 4, 3}, pool({2, 2}, {2, 2}, {1, 1}, {0, 0, 0, 0}));
  add({2, 7, 8, 20}, {2, 4, 4, 20}, pool({3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}));
  add({2, 8, 8, 70}, {2, 6, 4, 70}, pool({2, 3}, {1, 2}, {2, 2}, {0, 1, 0, 2}));  // more than a block of channels
  add({2, 11, 3}, {2, 5, 3}, pool({3}, {2}, {1}, {0, 0}));
  add({2, 5, 4, 6, 2}, {2, 3, 4, 3, 2}, pool({2, 2, 3}, {2, 1, 2}, {1, 1, 1}, {1, 0, 1, 0, 1, 1}));
  add({1, 1, 1, 1}, {1, 1, 1, 1}, pool({1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}));
  add({0, 6, 6, 3}, {0, 3, 3, 3}, pool({2, 2}, {2, 2}, {1, 1}, {0, 0, 0, 0}));
  const Attrs ceil = with(pool({3, 3}, {2, 3}, {1, 1}, {0, 1, 1, 0}), "ceil_mode", 1);
  cases.push_back(row("MaxPool", {apart({2, 7, 8, 5})}, ceil));
  cases.push_back(row("MaxPoolGrad", {{{2, 4, 3, 5}}, apart({2, 7, 8, 5})}, ceil));
  cases.push_back(row("AveragePool", {{{2, 7, 8, 5}}}, ceil));
}

}  // namespace

std::vector<OpCase> channels_last_cases() {
  std::vector<OpCase> cases;
  add_all_convolutions(cases);
  add_all_pools(cases);
  add_group_normalizations(cases);
  return cases;
}

}  // namespace onnx_train
