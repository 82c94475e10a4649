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
                    {"LayerNormalizationGrad", {x, scale, x}, {}, 3, "onnx_train", 1e-5},
                    {"LayerNormalizationGrad", {x, {{3, 8}}, x}, {{"axis", 1}}, 3, "onnx_train", 1e-5},
                    {"LayerNormalizationGrad", {{{50, 33}}, {{33}}, {{50, 33}}}, {}, 1, "onnx_train", 1e-5},
                });
}

}  // namespace

std::vector<OpCase> normalization_cases() {
  std::vector<OpCase> cases;
  layer_normalization_cases(&cases);
  return cases;
}

}  // namespace onnx_train
