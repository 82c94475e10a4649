// Whether a language model sees the tokens that it is to tell: one that reads in both directions copies its labels, and
// learns nothing. The caller owns session and data; one thread.
#pragma once

#include <string>

#include "runtime/data/dataset.h"
#include "runtime/session/session.h"

namespace onnx_train {

// Says that the labels are the tokens that follow, and that the logits of a token change with the token after it; "" if
// that is not so, or if the model writes no text (text_windows.h). Runs kPredict twice, on tokens of the data.
std::string seen_labels(Session* session, const Dataset& data, const EntryName& entry);

}  // namespace onnx_train
