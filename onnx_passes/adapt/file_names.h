// Names of weights in files, where they are not those of the model: a module that was wrapped for the export gives them
// a prefix, and of a weight that two modules share the exporter writes one name. Pure functions; any thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// What is put before the names of a file, or taken from them, so that they are names of the model.
struct NamePrefix {
  std::string added, dropped;
  bool empty() const { return added.empty() && dropped.empty(); }
  std::string apply(const std::string& name) const;
  std::string text() const;  // "with 'm.' before its names"
};

// The prefix with which most of `names` are among `known`. None where one name is known as it is.
NamePrefix common_prefix(const std::set<std::string>& known, const std::vector<std::string>& names);

// The names of the model's weights, those under which a module shares one and those of the module included.
std::set<std::string> weight_names(const Model& model);

// Weights of Linear layers that PyTorch's older exporter has transposed into initializers of its own: the names of the
// initializers ("onnx::MatMul_37"), and those of the module's parameters ("fc.weight"), as the names of nodes tell
// them. Left out is what two names may be: a layer that is called twice, or has more nodes than those of a Linear.
std::map<std::string, std::string> transposed_parameters(const Model& model);

// Moves arrays that have a name of transposed_parameters to the initializer's, transposed.
void transpose_parameters(const Model& model, std::map<std::string, Tensor>* arrays);

// Moves arrays that have another name of a weight (names_of_readers) to its own. Throws Error that names `source` where
// the file has both, and they differ.
void join_tied(const Graph& graph, const std::string& source, std::map<std::string, Tensor>* arrays);

// Checks rules such as "m.*=*". Throws Error (kUsage) that names --rename.
void check_renaming(const std::string& rule);
// The name by the first rule that fits it; '*' of the rule stands for any text, once on each side.
std::string renamed(const std::string& name, const std::vector<std::string>& rules);

}  // namespace onnx_train
