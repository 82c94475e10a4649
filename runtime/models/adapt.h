// What a user changes of a forward model before it is trained, as options and files: the passes are in
// onnx_passes/adapt. Functions on a model that one caller owns; any thread. They throw Error that names the file, the
// node or the option.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/model/adapt_options.h"
#include "onnx_passes/pipeline/pass_rows.h"
#include "runtime/support/options.h"

namespace onnx_train {

// --tie, --untie, --cut, --join, --resize-vocabulary, --head, --weights, --weights-partial, --lora, --ia3, --bitfit,
// --adapter. They write into `options`, which must outlive them.
std::vector<CommandOption> adapt_options(AdaptOptions* options);

// Puts the tokenizer's folder, or file, in the place of --resize-vocabulary auto. Nothing without a tokenizer.
void fit_vocabulary(const std::string& tokenizer, AdaptOptions* options);

// Reads the files that the options name, and changes the imported model: cut, join, heads, weights, adapters. `dtype`
// is the precision of the model. The lines of kAdapted (adapt.h) say what was done.
void adapt(Model* model, const AdaptOptions& options, const std::string& dtype, const PipelineOptions& pipeline = {});
// The passes of this, in order.
std::vector<PassRow> adapt_rows(const AdaptOptions& options, const std::string& dtype);

// The lines of kAdapted; empty for a model that was not changed.
std::vector<std::string> adapted_notes(const Model& model);

// ---- Adapters in files. A name that ends in .onnx_adapter is one of ONNX Runtime's (onnxruntime_adapter.h), another a
// folder in PEFT's format (https://huggingface.co/docs/peft): adapter_config.json, and adapter_model.safetensors
// with names such as base_model.model.layers.0.q.lora_A.weight.

// Writes the adapters of a training model, and the other weights that it trains, into the file or the folder, which is
// created. `rename`: rules of file_names.h, for names of modules and weights in PEFT's. Returns the names of the
// tensors.
std::vector<std::string> save_adapters(const Model& training, const std::string& path,
                                       const std::vector<std::string>& rename = {});

// Whether save_adapters writes a file of ONNX Runtime's.
bool is_onnxruntime_adapter(const std::string& path);

// Adds adapters with the values of a folder that save_adapters or PEFT wrote, or with a sum of several folders, as
// --adapter names them (adapter_sums.h).
void load_adapters(Model* model, const std::vector<std::string>& folders);

// The values of such a folder for a model that has adapters of the same kind, by the names of its tensors: those of its
// adapters, and of what was trained besides. B is multiplied where the scale of the folder is not the model's.
std::map<std::string, Tensor> adapter_values(const Model& model, const std::string& folder);

}  // namespace onnx_train
