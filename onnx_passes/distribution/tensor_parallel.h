// Products of weights that a group of ranks computes together, each with a part of the weights (Megatron-LM: Shoeybi et
// al. 2019, arXiv:1909.08053; Narayanan et al. 2021, arXiv:2104.04473): one product by columns, what follows it element
// by element or by heads, and another product by rows, whose results are terms that are added up; convolutions alike,
// by their channels; a vocabulary by rows of its table and by classes of the loss. Which products these are follows
// from the graph: from the cut of a weight follows what the ranks have of each value, and what cannot be computed from
// parts alone is not cut (layout_propagation.h). Functions on models that one caller owns; throw Error.
#pragma once

#include <string>

#include "onnx_passes/distribution/tensor_layout.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// What ranks share out, and what for people.
struct TensorShares {
  StateCuts cuts;
  int matrices = 0, cut_matrices = 0;  // trained weights of products and of lookups
  double cut_elements = 0;             // of the trained weights' elements, from 0 to 1
  std::string whole, reason;           // the first weight that all ranks have whole, and what reads all of a value
};

// The cuts of weights, and of their states, for groups of `parts` ranks. Of the cuts of a weight that need no more than
// sums, it takes those with the fewest elements to exchange. Throws Error where no weight of a product can be cut.
TensorShares share_out_tensors(const Model& model, int parts);

// "15 of 17 products and lookups, 92% of the trained weights".
std::string describe(const TensorShares& shares);

// Makes a flattened entry point that of rank `part` of the group: it has its parts of the states, and AllReduce adds up
// terms where a node reads their sum. It computes what one rank computes, within rounding. All ranks of the group are
// given the same inputs, have the same outputs, and the same collectives in the same order.
void split_tensors(Model* flat, const StateCuts& cuts, int parts, int part);

}  // namespace onnx_train
