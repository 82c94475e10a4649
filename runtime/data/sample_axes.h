// Along which axis an input or an output holds its samples: the first, unless the model names another one. Pure
// functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "runtime/data/dataset.h"

namespace onnx_train {

// The symbol of the size that counts the samples of a batch. It is that of the first axis of the loss's first input
// (the labels) or, in a model without a loss, of the model's first input; but where a recurrent layer reads [steps,
// batch, features] and the first axis is its steps, it is that of its batch. `inputs` are the data of an entry point;
// another entry point's loss counts, too. "" where that size has no name.
std::string batch_symbol(const Model& model, const std::vector<InputSpec>& inputs);

// The first axis of a tensor of this type that has the symbol, unless axis 0 has it; 0 where no axis has it.
size_t sample_axis(const TensorType& type, const std::string& symbol);

// The tensor with its axis `from` at the place `to`, in C order: [n, steps, features] as [steps, n, features].
Tensor with_axis_at(const Tensor& tensor, size_t from, size_t to);

// The first `count` elements along an axis, all where there are no more.
Tensor first_along(const Tensor& tensor, size_t axis, int64_t count);

// "samples of 'x' are along its axis 1 ('n'), as those of 'labels'", of arrays whose axis is not the first; else "".
std::string sample_axes_note(const Dataset& data);

}  // namespace onnx_train
