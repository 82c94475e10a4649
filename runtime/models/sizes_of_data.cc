#include "runtime/models/sizes_of_data.h"

#include <set>

#include "onnx_passes/import/sizes.h"

namespace onnx_train {

std::vector<std::string> sizes_of_data(const Model& forward, const Dataset& data, const std::vector<std::string>& given,
                                       bool is_one_batch) {
  std::set<std::string> known;
  for (const std::string& size : given) known.insert(parse_size(size).first);
  std::vector<std::string> sizes;
  for (const Value* input : forward.graph->inputs()) {
    const Dataset::Array* array = data.find(input->name());
    if (!array || !input->has_rank()) continue;
    const Dims& dims = *input->type().dims;
    const Shape shape = array->batch_shape(data.num_samples());
    for (size_t i = 0; shape.size() == dims.size() && i < shape.size(); ++i) {
      const std::string& symbol = dims[i].symbol();
      const bool is_name = !symbol.empty() && symbol.find_first_of(" +-*/()=,") == std::string::npos;
      if (!is_name || (!is_one_batch && array->per_sample && i == array->axis)) continue;
      if (known.insert(symbol).second) sizes.push_back(concat(symbol, "=", shape[i]));
    }
  }
  return sizes;
}

std::string sizes_note(const std::vector<std::string>& sizes, const std::string& why) {
  std::string text = "built for the sizes of the data, ";
  for (size_t i = 0; i < sizes.size(); ++i) text += concat(i > 0 ? ", " : "", sizes[i]);
  const size_t part = why.starts_with("[") ? why.find("] ") : std::string::npos;  // the part that found it
  return concat(text, " (--dim gives others); as exported: ", part == std::string::npos ? why : why.substr(part + 2));
}

}  // namespace onnx_train
