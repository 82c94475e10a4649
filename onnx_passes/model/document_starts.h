// The input by which a language model keeps the documents of a row apart: int64[batch, tokens], for each token the
// place in the row where its document starts. Zeros: a row is one document. Functions on a model that one caller owns;
// one thread.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

inline constexpr const char* kDocumentStarts = "document_starts";

// Makes the model one whose rows are single documents, without the input, as it was before separate_documents. Does
// nothing to other models.
void join_documents(Model* model);

}  // namespace onnx_train
