// The inference model of a training model, as options say it: what `export` writes, in the command, C, C++ and Python.
// Plain values and functions; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/stored_weights.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/quantization/store_quantized.h"
#include "runtime/support/options.h"

namespace onnx_train {

struct ExportSettings {
  std::vector<std::string> dtype;  // in which the weights are stored: "int4", "block=64"; empty: as they are
  std::string tta;                 // views of pictures over which the outputs are averaged (test_time_augmentation.h)
  bool merge = false, original_types = false;
  bool cache = false;           // of keys and values (onnx_passes/tokens/add_cache.h)
  bool adapter_inputs = false;  // adapters as inputs, for ONNX Runtime's (serve_adapters.h)
  std::string into;             // a model or folder whose weights are replaced (export_into.h)
  std::string base;             // with `into`: the model that was trained, as it was before; "" for `into` itself
};

// Whether --dtype says more than that weights stay as they are, in float32.
bool stores_other_type(const ExportSettings& settings);

// --merge, --cache, --dtype, --tta, --original-types, --adapter-inputs, --into, --base. They write into `settings`,
// which must outlive them.
std::vector<CommandOption> export_options(ExportSettings* settings);

struct InferenceExport {
  Model model;
  StorageSpec storage;                    // where --dtype is given
  std::map<std::string, Tensor> rounded;  // the numbers that are left of each weight that it stores
  StoredIntegers integers;                // weights that are integers as the model was trained
  int restored = 0;                       // weights that were integers, and are floats with adapters in them
  size_t cached = 0;                      // tensors of the cache of keys and values
  MergedAdapters merged;                  // layers whose adapters are folded into their weights
  std::vector<std::string> inputs;        // that adapters are now
};

// No training entry points, no state but the weights; adapters merged where the settings say so. `name` is the model's
// in errors.
InferenceExport strip_and_merge(const Model& training, const ExportSettings& settings, const std::string& name);

// The same, and all else that the settings say. `name` is the model's in errors. Throws Error where an option has
// nothing to do, or does not go with another.
InferenceExport export_inference(const Model& training, const ExportSettings& settings, const std::string& name);

// That these inputs are adapters, in a line.
std::string inputs_note(const std::vector<std::string>& inputs);

// What the settings say, as a message: this, or the model that they put weights into.
ModelMessage export_message(const Model& training, const ExportSettings& settings, const std::string& name);

}  // namespace onnx_train
