// What `export --cache` writes, compared with the model that it is made of. Pure functions; any thread.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Adds a cache of keys and values (CacheForm::kGrowing) to an inference model of a language, and reads a short text by
// both. Returns how many keys and values there are. Throws Error "[Cache] ..." for a model that has none, or whose
// logits are others.
size_t add_compared_cache(Model* model);

}  // namespace onnx_train
