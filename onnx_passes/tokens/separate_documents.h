// Lets several documents share a row of a language model, of which none reads another one: `--document-mask`. A pass on
// an imported model that one caller owns; one thread. It throws Error "[Documents] ..." that names the node where
// tokens are mixed in another way than by attention (token_axes.h), or a position that cannot begin anew.
//
// The model gets the input document_starts (onnx_passes/model/document_starts.h). Scores of attention are hidden where
// query and key have other starts: in the mask that is added to them or selects them, else in the scores themselves.
// Positions that are added to the tokens are those within the document: row t - start of what is computed for all.
// Where they are an input, the data say them. Positions that are multiplied, as rotary ones, or added to scores are
// taken for relative, so that they go on over the row.
#pragma once

#include "onnx_passes/model/pass.h"

namespace onnx_train {

Pass separate_documents();

}  // namespace onnx_train
