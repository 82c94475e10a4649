// Sums of LoRA adapters, as --adapter names them: "A", "B=0.5", "combination=linear". Pure functions on values; any
// thread. They throw Error that names the folder.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/adapt/adapter_spec.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// What PEFT's add_weighted_adapter computes, for weights w and scales s = alpha / rank.
enum class AdapterCombination {
  kConcatenation,  // Σ w s B A, exactly: the ranks of all follow each other
  kLinear,         // (Σ √|w s| B) (Σ ±√|w s| A), ± the sign of w s: adapters of one rank, which it stays
};

struct AdapterSum {
  struct Term {
    std::string folder;
    double weight = 1;
  };
  std::vector<Term> terms;  // at least one
  AdapterCombination combination = AdapterCombination::kConcatenation;

  // One folder as it is.
  bool is_one() const { return terms.size() == 1 && terms[0].weight == 1; }
};
AdapterSum parse_adapter_sum(const std::vector<std::string>& pieces);
// "the adapters are summed: A, 0.5 times B", for people.
std::string to_string(const AdapterSum& sum);

// The adapter of a folder: its values have the names of the model's tensors.
struct AdapterOfFolder {
  AdapterSpec spec;
  TensorMap values;
};
// `adapters` are those of the terms. Throws Error for adapters that are none of LoRA, that have DoRA, ranks that
// differ where they may not, and what several have trained besides.
AdapterOfFolder combined(const AdapterSum& sum, const std::vector<AdapterOfFolder>& adapters);

}  // namespace onnx_train
