// The tokens of a text, in a file that a later run maps: beside the text, TEXT.01234567.tokens, or where its folder
// cannot be written in the folder tokens/ of cache_folder (kernels/choices/cache.h). It is a file of safetensors, and
// counts if its metadata name the same size, time of change and contents of the text (fingerprint.h says how much is
// read), and the same makers of tokens; any other is made anew. Files are written atomically: processes that start
// together write the same one. Functions may run on any thread.
#pragma once

#include <functional>
#include <string>

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// All documents of a text after each other.
struct DocumentTokens {
  Tensor tokens;            // uint32[n]
  Tensor ends;              // int64[documents]: ascending, the last one is n
  Tensor answers = {};      // uint8[n]: 1 for tokens that are learned; empty: all are
  std::string remark = "";  // what was found when they were made
};

// What `make` gives, or what an earlier call has kept. `made_by` is all that the tokens depend on beside the text:
// tokenizer, end of documents, template. A kept file is not looked for unless `keeps`. `*note` says where they are
// kept, or why they are not. Throws Error where the text cannot be read, and what `make` throws.
DocumentTokens kept_tokens(const std::string& path, const std::string& made_by, bool keeps,
                           const std::function<DocumentTokens()>& make, std::string* note);

}  // namespace onnx_train
