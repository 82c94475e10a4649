// A folder that holds a model and what serves it: what Optimum, transformers and ONNX Runtime GenAI's builder write
// (model.onnx with its data, config.json, genai_config.json, tokenizer.json). Functions on files; any thread. They
// throw Error that names the file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_passes/ir/message.h"

namespace onnx_train {

// `path`, or the model's file if it is a folder: the decoder that genai_config.json names, model.onnx,
// decoder_model.onnx or decoder_model_merged.onnx there or in its folder onnx/, or the only .onnx file. Throws Error
// that lists the files where none of these is there.
std::string model_file(const std::string& path);

// All .onnx files of a folder and below it, as paths from there.
std::vector<std::string> models_of_folder(const std::string& folder);

// Writes the model, with its large tensors in a file beside it if those of the model at `like` are.
void save_like(const ModelMessage& message, const std::string& like, const std::string& path);

// Writes the folder `to` like `from`: other models in the place of those with these paths, all else copied, but for the
// data files of those models alone. Each file is either old or new, and complete. Throws Error if one of the folders is
// in the other.
void write_folder_like(const std::string& from, const std::map<std::string, ModelMessage>& models,
                       const std::string& to);

}  // namespace onnx_train
