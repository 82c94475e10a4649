// Names of classes in the metadata of a model. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

namespace onnx_train {

// As the metadata of a model keep them: a JSON list.
std::string classes_to_json(const std::vector<std::string>& classes);
std::vector<std::string> classes_from_json(const std::string& text);  // none for what is no list of texts

}  // namespace onnx_train
