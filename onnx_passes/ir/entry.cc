#include "onnx_passes/ir/entry.h"

namespace onnx_train {

const char* name_of(Entry entry) {
  switch (entry) {
    case Entry::kPredict: return "predict";
    case Entry::kEvaluate: return "evaluate";
    case Entry::kStep: return "step";
    case Entry::kAccumulate: return "accumulate";
    case Entry::kApply: return "apply";
    case Entry::kInitialize: return "initialize";
    case Entry::kOther: return "";
  }
  return "";
}

Entry entry_of(std::string_view name) {
  for (const Entry entry : kEntries) {
    if (name == name_of(entry)) return entry;
  }
  return Entry::kOther;
}

bool trains(Entry entry) {
  return entry != Entry::kPredict && entry != Entry::kEvaluate && entry != Entry::kInitialize;
}

}  // namespace onnx_train
