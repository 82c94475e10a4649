// A GPT in our own IR, for tests that need a deep network of any size without an exporter.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct TransformerSizes {
  int blocks = 2;
  int64_t width = 8, heads = 2, tokens = 4, vocabulary = 16;
  float dropout = 0;  // behind the embedding and both halves of each block; acts once the model is built to train
};

// tokens [batch, tokens] int64 -> logits [batch, tokens, vocabulary]. Pre-norm blocks, causal attention written out as
// products and a softmax, GELU. The weights differ from each other and are the same each time.
Model make_transformer(const TransformerSizes& sizes);

// The same, built into a training model: cross entropy against `labels`, AdamW.
Model make_training_transformer(const TransformerSizes& sizes);

}  // namespace onnx_train
