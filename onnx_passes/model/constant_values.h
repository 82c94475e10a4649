// Values that training never produces: masks, sines and cosines, windows, fixed filters. Each test asks for more
// coincidences than weights of a network have by chance, and reads few elements of a tensor that is none of this. Pure
// functions; they throw Error if contents cannot be read.
#pragma once

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// Only zeros and very negative numbers, what is added to scores to hide them: -1e4 or less, or one number of -50 or
// less (Swin writes -100).
bool is_additive_mask(const Tensor& x);
// Only zeros and ones, both of them.
bool is_binary(const Tensor& x);

// A vector of at least four elements: each is the same multiple of the one before (rotary frequencies, slopes of
// ALiBi).
bool is_geometric(const Tensor& x);
// Along the last axis, which has at least four elements, steps of one size up or down in each row; very negative
// numbers, which hide scores, do not count. Positions 0, 1, 2, ..., distances, and slopes times distances (ALiBi).
bool is_ramp(const Tensor& x);
// At least 64 elements, all of them positive multiples of 1/2, not all equal, one of 2 or more: the middles of the
// cells of a detector's maps, and the strides of these.
bool is_grid(const Tensor& x);
// A vector of at least eight elements that rise to one peak and fall in the same way: a window of Hann, of Gauss.
bool is_window(const Tensor& x);
// A matrix whose rows or columns are samples of sines of different frequencies, or pairs cos(f i), sin(f i), possibly
// times a window: sinusoidal and rotary tables, matrices of Fourier and cosine transforms. Axes of size 1 do not count;
// of more than two others the first are a batch.
bool is_sinusoidal(const Tensor& x);

// Filters of a convolution [out, in, k...]: one filter for all channels, or each symmetric in the way of Gauss's,
// Sobel's and Laplace's, or an interpolation's.
bool is_fixed_filter(const Tensor& x);
// A matrix of non-negative triangles, each along a column (or each along a row): a bank of mel filters.
bool is_filter_bank(const Tensor& x);

}  // namespace onnx_train
