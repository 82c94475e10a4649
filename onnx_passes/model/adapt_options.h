// What --tie, --untie, --cut, --join, --resize-vocabulary, --head, --weights, --weights-partial, --lora, --ia3,
// --bitfit, --adapter and --document-mask say. Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onnx_train {

struct AdaptOptions {
  std::vector<std::string> tie;    // "A=B": weights that are one
  std::vector<std::string> untie;  // weights that are several
  std::vector<std::string> cut;    // inner values that become the outputs
  std::string join;                // FILE.onnx
  std::vector<std::string> heads;  // "logits=3"
  std::string weights;             // FILE.safetensors or .npz
  bool weights_partial = false;    // the file has only some of them
  std::vector<std::string> lora, ia3;
  bool bitfit = false;
  std::vector<std::string> qat;            // "int8", "weights=per_tensor"; see adapt/qat.h
  std::vector<std::string> quantize_base;  // "int4", "block=64"; see adapt/stored_weights.h
  std::vector<std::string> adapter;        // folders in PEFT's format, "DIR=0.5", "combination=linear"
  std::vector<std::string> vocabulary;     // "512" or a tokenizer, "multiple=64"
  bool document_mask = false;              // documents of a row are apart: tokens/separate_documents.h
  uint64_t seed = 0;                       // of new heads and adapters

  bool any() const {
    return !(tie.empty() && untie.empty() && cut.empty() && join.empty() && heads.empty() && weights.empty() &&
             lora.empty() && ia3.empty() && adapter.empty() && qat.empty() && quantize_base.empty() &&
             vocabulary.empty()) ||
           bitfit || document_mask;
  }
};

}  // namespace onnx_train
