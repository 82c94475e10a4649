#include "onnx_passes/gradients/without_gradient.h"

namespace onnx_train {
namespace {

constexpr const char* kSequence = "sequences whose members the graph tells become these tensors at import";
constexpr const char* kSpectrum = "a product with cosines and sines at import, where its lengths are known";

const std::vector<WithoutGradient> kRows = {
    {"BitCast", Without::kGradient, "bits are no smooth function of a number"},

    {"ConcatFromSequence", Without::kOwnNode, kSequence},
    {"SequenceAt", Without::kOwnNode, kSequence},
    {"SequenceConstruct", Without::kOwnNode, kSequence},
    {"SequenceErase", Without::kOwnNode, kSequence},
    {"SequenceInsert", Without::kOwnNode, kSequence},
    {"SplitToSequence", Without::kOwnNode, kSequence},
    {"DFT", Without::kOwnNode, kSpectrum},
    {"STFT", Without::kOwnNode, kSpectrum},
    {"MelWeightMatrix", Without::kOwnNode, "a constant at import"},
    {"Loop", Without::kOwnNode, "a Scan at import, where its number of steps is known or has a constant bound"},

    {"Attention", Without::kSecondOrder, "not a number where a mask hides every key of a query"},
    {"Compress", Without::kSecondOrder, "the size of its output depends on data"},
    {"ScatterElements", Without::kSecondOrder, "with reduction mul alone"},
    {"ScatterND", Without::kSecondOrder, "with reduction mul alone"},

    {"Optional", Without::kYet, "values that may be absent are not read here"},
};

}  // namespace

const std::vector<WithoutGradient>& without_gradient_rows() { return kRows; }

const WithoutGradient* find_without_gradient(std::string_view op, bool second_order) {
  for (const WithoutGradient& row : kRows) {
    if (op == row.op && (row.what == Without::kSecondOrder) == second_order) return &row;
  }
  return nullptr;
}

}  // namespace onnx_train
