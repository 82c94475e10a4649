// Spectra as products: DFT and STFT become products with matrices of cosines and sines, MelWeightMatrix a constant. So
// they have the gradients and kernels of products, on every device. One caller owns the model.
#pragma once

#include <functional>
#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Replaces those of the model's graph whose lengths are known; others stay. Records the matrices as constants
// (constants.h). `replaced` is told each node's label. Throws Error for operands that do not fit.
void replace_spectra(Model* model, const std::function<void(const std::string&)>& replaced);

}  // namespace onnx_train
