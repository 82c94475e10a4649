// The multiply-adds of a node, for the column of that name in an operator's row. Unknown sizes count as 1, unknown
// ranks make 0. Pure functions; any thread; nothing throws for a node that fits its row's contract.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// The value of the dimension, or 1 if it is unknown.
double size_or_one(const Dim& dim);
// The product of the sizes of a value with a rank.
double elements_or_one(const Value& value);

double multiply_adds_of_matmul(const Node& node);
double multiply_adds_of_gemm(const Node& node);
double multiply_adds_of_transposed_matmul(const Node& node);
double multiply_adds_of_einsum(const Node& node);
double multiply_adds_of_recurrence(const Node& node);  // RNN, GRU, LSTM
double multiply_adds_of_conv(const Node& node);
double multiply_adds_of_transposed_conv(const Node& node);  // ConvTranspose, ConvGradInput
double multiply_adds_of_weight_gradient(const Node& node);  // ConvGradWeight
// For functions whose bodies count the elements of a window with convolutions or multiply by nearly empty matrices:
// that is not arithmetic of the model.
double no_multiply_adds(const Node& node);

}  // namespace onnx_train
