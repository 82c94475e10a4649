// Weights stored in fewer bits, and floats where they are read: of an exported model (`export --dtype`), and of the
// frozen layers beside adapters (`build --quantize-base`, QLoRA: Dettmers et al. 2023, with plain integers). Integers
// are symmetric, with one scale for each block of elements along the axis of the layer's inputs:
//
//   scale = max |w| / 127 (int8) or / 7 (int4),  q = round(w / scale),  w = q scale
//
// Functions on a model that one caller owns; they throw Error that names the weight or the option.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_passes/model/pass.h"

namespace onnx_train {

struct StorageSpec {
  DType dtype = DType::kFloat;  // kFloat16, kBFloat16, kInt8 or kInt4 (qdq.h)
  int64_t block = 32;           // of integers
};

// Parses "int4", "block=64". `types`: those that `option` takes. Throws Error that names the piece.
StorageSpec parse_storage(const std::vector<std::string>& pieces, const std::string& option,
                          const std::vector<std::string>& types);

// Stores the weights of linear layers, convolutions and embeddings; 16-bit floats: all that have two axes or more.
// Returns, by name, the numbers that are left of each.
std::map<std::string, Tensor> store_weights(Model* inference, const StorageSpec& spec);

// Stores the frozen weights of layers with adapters as integers: int4 as two in a byte.
// `new_adapters`: their magnitudes (DoRA) become those of the rounded weights.
Pass quantize_base(const StorageSpec& spec, bool new_adapters);

// Weights that are stored as integers become floats again, under their names. Returns how many there were.
int dequantize_weights(Model* inference);

// Initializers that were 4 bits wide (kFourBits) and that only DequantizeLinear reads are so again. The last step of an
// export: nothing here computes with them.
void pack_four_bits(Model* inference);

}  // namespace onnx_train
