// Selection of weights by names, globs and lists in files. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/model/build_options.h"

namespace onnx_train {

// Whether a glob matches a whole name, as fnmatch(3) does without flags for paths: `*` stands for any characters, / and
// a first dot among them, `?` for one, `[a-c]` and `[!x]` for one of a set. A backslash is a character like others.
bool matches(const std::string& pattern, const std::string& name);

// The initializers in `values` that some pattern matches, in their order. A pattern is a name, a glob, or @file with
// one pattern per line; the other names of an initializer, such as that in the PyTorch module (weight_origin.h), match,
// too. Throws Error, starting with `option`, for a pattern that matches nothing and for a file that cannot be read.
std::vector<Value*> match_names(const std::vector<Value*>& values, const std::vector<std::string>& patterns,
                                const std::string& option);
// The same by the values' names alone, without an error for a pattern that matches nothing.
std::vector<Value*> find_names(const std::vector<Value*>& values, const std::vector<std::string>& patterns,
                               const std::string& option);

// The float initializers that `train` and `freeze` select for training, in the order of the graph; may be empty.
// Without `train` all but constants (constants.h), which a pattern selects only if it is a constant's name or matches
// no weight. Throws Error for a pattern that matches nothing.
std::vector<Value*> select_trainable(const Model& model, const std::vector<std::string>& train,
                                     const std::vector<std::string>& freeze);

}  // namespace onnx_train
