#include "tests/op_cases/op_case.h"

namespace onnx_train {
namespace {

void layer_normalization_cases(std::vector<OpCase>* cases) {
  const OpInput x = {{4, 3, 8}}, scale = {{8}, 0.5, 1.5}, bias = {{8}};
  cases->insert(cases->end(),
                {
                    {"LayerNormalization", {x, scale, bias}},
                    {"LayerNormalization", {x, scale}, {{"axis", 2}, {"epsilon", 1e-3f}}},
                    {"LayerNormalization", {x, {{3, 8}, 0.5, 1.5}, {{3, 8}}}, {{"axis", 1}}},
                    {"LayerNormalization", {{{2, 3, 4}}, {{2, 3, 4}}, {{2, 3, 4}}}, {{"axis", 0}}, 1, "", 1e-5},
                    {"LayerNormalization", {{{40, 65}}, {{65}}, {{65}}}},
                    {"LayerNormalization", {{{0, 8}}, scale, bias}},
                    {"LayerNormalization", {x, scale, bias}, {{"stash_type", 11}, {"epsilon", 1e-2f}}, 3},
                    {"LayerNormalizationGrad", {x, scale, x}, {}, 3, "onnx_train", 1e-5},
                    {"LayerNormalizationGrad", {x, {{3, 8}}, x}, {{"axis", 1}}, 3, "onnx_train", 1e-5},
                    {"LayerNormalizationGrad", {{{50, 33}}, {{33}}, {{50, 33}}}, {}, 1, "onnx_train", 1e-5},
                    {"LayerNormalizationGrad", {{{200, 40}}, {{40}}, {{200, 40}}}, {}, 3, "onnx_train", 1e-5},
                });
}

// Rows that threads keep in registers, few elements or many of them, in whole vectors or not, and longer ones.
void long_row_cases(std::vector<OpCase>* cases) {
  for (const int64_t n : {700, 768, 960, 1501, 1504, 2056, 4100}) {
    cases->push_back({"LayerNormalization", {{{5, n}}, {{n}, 0.5, 1.5}, {{n}}}, {}, 1, "", 1e-5});
    for (const char* op : {"LayerNormalizationGrad", "RMSNormalizationGrad"}) {
      const int outputs = op == std::string("LayerNormalizationGrad") ? 3 : 2;
      OpCase row = {op, {{{20, n}}, {{n}, 0.5, 1.5}, {{20, n}}}, {}, outputs, "onnx_train", 1e-5};
      row.gradient = false;
      cases->push_back(row);
    }
  }
}

void batch_normalization_cases(std::vector<OpCase>* cases) {
  const auto add = [&](Shape shape) {
    const int64_t c = shape[1];
    const OpInput x = {shape}, scale = {{c}, 0.5, 1.5}, bias = {{c}}, mean = {{c}}, var = {{c}, 0.5, 1.5};
    const Attrs epsilon = {{"epsilon", 1e-3f}};
    cases->push_back({"BatchNormalization", {x, scale, bias, mean, var}, epsilon});
    cases->push_back({"BatchNormalizationFrozenGrad", {x, scale, mean, var, x}, epsilon, 3, "onnx_train"});
    cases->push_back({"BatchNormalizationGrad", {x, scale, mean, var, x}, epsilon, 3, "onnx_train"});
    const OpInput y = {shape, -1, 1, {0}};
    const auto with_epilogue = [&](const char* epilogue) { return Attrs{{"epsilon", 1e-3f}, {"epilogue", epilogue}}; };
    const auto add_relu = [&](const char* op, std::vector<OpInput> inputs, int num_outputs,
                              const char* epilogue = "relu") {
      OpCase row = {op, std::move(inputs), with_epilogue(epilogue), num_outputs, "onnx_train"};
      row.gradient = false;
      cases->push_back(row);
    };
    add_relu("BatchNormalization", {x, scale, bias, mean, var}, 1);
    add_relu("BatchNormalization", {x, scale, bias, mean, var, x}, 1, "residual, relu");
    for (int outputs : {3, 4}) add_relu("BatchNormalizationGrad", {x, scale, mean, var, x, y}, outputs);
    if (shape[0] == 0) return;
    cases->push_back({"BatchNormalizationTrain", {x, scale, bias}, epsilon, 3, "onnx_train"});
    add_relu("BatchNormalizationTrain", {x, scale, bias}, 3);
    add_relu("BatchNormalizationTrain", {x, scale, bias, x}, 3, "residual, relu");
    // Where a sum of another order falls on the other side of the middle, a result is rounded the other way.
    const auto add_rounded = [&](const char* op, const std::vector<OpInput>& inputs, const char* epilogue,
                                 int num_outputs) {
      for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
        OpCase row = {op, inputs, with_epilogue(epilogue), num_outputs, "onnx_train"};
        row.attrs.emplace_back("round_to", static_cast<int>(dtype));
        row.gradient = false;
        row.tolerance = dtype == DType::kBFloat16 ? 0x1p-7 : 0x1p-10;
        cases->push_back(row);
      }
    };
    add_rounded("BatchNormalization", {x, scale, bias, mean, var}, "relu", 1);
    add_rounded("BatchNormalization", {x, scale, bias, mean, var, x}, "residual, relu", 1);
    add_rounded("BatchNormalizationTrain", {x, scale, bias}, "relu", 3);
    add_rounded("BatchNormalizationTrain", {x, scale, bias, x}, "residual, relu", 3);
  };
  add({4, 3, 5, 5});
  add({6, 5});
  add({2, 20, 7});
  add({3, 300});       // several blocks of channels
  add({700, 16});      // several pieces of few channels
  add({9, 264});       // more channels than a block reads in packs
  add({150, 3, 2});    // several pieces of the batch
  add({3, 20, 6, 7});  // long rows, many channels
  add({33, 2, 3, 1, 2});
  add({1, 1, 4});
  add({0, 3, 2});
  const OpInput x = {{5, 3, 4}}, v = {{3}, 0.5, 1.5};
  cases->push_back({"BatchNormalizationTrain", {x, v, v}, {}, 1, "onnx_train"});
  cases->push_back({"BatchNormalizationGrad", {x, v, v, v, x}, {}, 1, "onnx_train"});
  // dx alone reads neither x nor the mean.
  OpInput unread_x = x, unread_mean = v;
  unread_x.zero_gradient = unread_mean.zero_gradient = true;
  cases->push_back({"BatchNormalizationFrozenGrad", {unread_x, v, unread_mean, v, x}, {}, 1, "onnx_train"});
}

void group_normalization_cases(std::vector<OpCase>* cases) {
  const auto add = [&](Shape shape, int64_t groups) {
    const int64_t c = shape[1];
    const OpInput x = {shape}, scale = {{c}, 0.5, 1.5}, bias = {{c}};
    const Attrs attrs = {{"num_groups", groups}, {"epsilon", 1e-3f}};
    cases->push_back({"GroupNormalization", {x, scale, bias}, attrs});
    cases->push_back({"GroupNormalizationGrad", {x, scale, x}, attrs, 3, "onnx_train"});
    cases->push_back({"InstanceNormalization", {x, scale, bias}, {{"epsilon", 1e-3f}}});
  };
  add({2, 6, 4, 5}, 3);
  add({3, 4, 9}, 1);
  add({2, 4, 3}, 4);
  add({1, 2, 1, 8}, 2);
  add({0, 4, 3}, 2);
  cases->push_back({"GroupNormalizationGrad", {{{2, 4, 3}}, {{4}}, {{2, 4, 3}}}, {{"num_groups", 2}}, 1, "onnx_train"});
}

void other_normalization_cases(std::vector<OpCase>* cases) {
  const OpInput x = {{3, 4, 5}, 0.2, 1}, image = {{2, 5, 3, 4}};
  cases->insert(cases->end(), {
                                  {"LpNormalization", {image}},
                                  {"LpNormalization", {x}, {{"axis", 1}, {"p", 1}}},
                                  {"LpNormalization", {image}, {{"axis", 0}, {"p", 2}}},
                                  {"LpNormalization", {{{0, 3}}}},
                                  {"MeanVarianceNormalization", {image}},
                                  {"MeanVarianceNormalization", {x}, {{"axes", std::vector<int64_t>{1, -1}}}},
                                  {"LRN", {image}, {{"size", 3}, {"alpha", 0.5f}, {"beta", 0.75f}, {"bias", 1.5f}}},
                                  {"LRN", {image}, {{"size", 4}, {"alpha", 0.5f}}},
                                  {"LRN", {{{2, 4, 6}}}, {{"size", 9}}},
                              });
}

void rms_normalization_cases(std::vector<OpCase>* cases) {
  const auto add = [&](const Shape& shape, const Shape& scale_shape, int64_t axis) {
    const OpInput x = {shape}, scale = {scale_shape, 0.5, 1.5};
    const Attrs attrs = {{"axis", axis}, {"epsilon", 1e-3f}};
    cases->push_back({"RMSNormalization", {x, scale}, attrs});
    cases->back().opset = 23;
    cases->push_back({"RMSNormalization", {x, scale}, attrs, 1, "onnx_train"});
    cases->push_back({"RMSNormalizationGrad", {x, scale, x}, attrs, 2, "onnx_train"});
  };
  add({4, 3, 8}, {8}, -1);
  add({2, 3, 4}, {3, 4}, 1);
  add({40, 65}, {65}, 1);
  add({0, 4}, {4}, -1);
}

}  // namespace

std::vector<OpCase> normalization_cases() {
  std::vector<OpCase> cases;
  layer_normalization_cases(&cases);
  long_row_cases(&cases);
  rms_normalization_cases(&cases);
  batch_normalization_cases(&cases);
  group_normalization_cases(&cases);
  other_normalization_cases(&cases);
  return cases;
}

}  // namespace onnx_train
