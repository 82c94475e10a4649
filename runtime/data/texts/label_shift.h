// Labels of language models: label t of a sample is token t + 1. Data that were made for transformers have label t =
// token t, since its models shift them inside. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/files/read_options.h"

namespace onnx_train {

// Says that the labels are the tokens of the same positions, wherever they are not `ignored` (negative), and what to
// do;
// "" if they are not. Labels that files of tokens make are not looked at, nor texts whose tokens are all alike.
std::string copied_labels(const Dataset& data, const Model& model, const EntryName& entry);

// The tokens of the first sample with labels, where these are the tokens that follow wherever they are not negative;
// none if they are not.
std::vector<int64_t> tokens_before_labels(const Dataset& data, const Model& model, const EntryName& entry);

// Moves the labels of language models one to the left: --shift-labels. The last one of a sample becomes `ignored`.
// Throws UsageError where the inputs have no integers [batch, tokens] as labels, or these follow the tokens already.
void shift_labels(DataArrays* data, const std::vector<InputSpec>& inputs, int64_t ignored);

}  // namespace onnx_train
