// The base of a checkpoint: files of other models that hold the weights which the training leaves as they are. Tensors
// refer to them as ONNX's external data, by a path from the checkpoint's folder; `onnx_train.base` says for each such
// path where else the file is looked for, and the hash of what the checkpoint has in it. A file is taken by that hash
// alone, so that no model can read a file outside of its folder whose contents its writer did not know. Any thread;
// functions throw Error.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "onnx_passes/io/file.h"
#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

inline constexpr const char* kBase = "onnx_train.base";

struct BaseFile {
  std::string location;  // the path that tensors name, from the folder of the model
  size_t bytes = 0;      // of the file
  std::string hash;      // XXH3-128 of the tensors in it, in the order of the model
  std::string relative;  // the path from the folder of the model, which may lead out of it
  std::string absolute;
};

// Whether the record can hold the path: control characters separate its fields.
bool may_be_base(const std::string& path);
// The record, and back. Throws Error if it is damaged.
std::string base_record(const std::vector<BaseFile>& files);
std::vector<BaseFile> parse_base_record(const std::string& text);
// The record of a model, which is taken out of its metadata.
std::vector<BaseFile> take_base_record(onnx::ModelProto* model);

// Where bases are looked for, each a model or a folder: there and nowhere else, or there too, where no other place has
// them. A policy of the whole process, to be set before models are loaded; "", as at first, is none.
void look_for_base_in(const std::string& named);
void also_look_for_base_in(const std::string& named);

// Opens the first file of the record's size among the places where it may be: that the user has named; from the
// folder of the model and by the absolute path, as they were when the checkpoint was written; under its name in the
// folder. `path` is the one that was opened. Throws Error that says where it was looked for.
File open_base(const BaseFile& base, const std::string& folder, std::string* path);
// Throws Error: the file at `path` has other contents than the base.
[[noreturn]] void refuse_base(const BaseFile& base, const std::string& path);

}  // namespace onnx_train
