// Adapters in PEFT's format.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/file_names.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/adapt/serve_adapters.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/text/expression.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/models/adapt.h"
#include "runtime/models/adapter_sums.h"
#include "runtime/models/layer_numbers.h"
#include "runtime/models/onnxruntime_adapter.h"

namespace onnx_train {
namespace {

using AdapterJson = nlohmann::ordered_json;  // the order of patterns counts
namespace fs = std::filesystem;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kTensors = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kASuffix = ".lora_A.weight", kScaleSuffix = ".ia3_l", kInputScaleSuffix = ".ia3_ff",
                           kMagnitudeSuffix = ".lora_magnitude_vector";

std::string without_suffix(const std::string& text, std::string_view suffix) {
  return text.substr(0, text.size() - suffix.size());
}

// ---- Writing

// Ranks and alphas of single layers. PEFT takes the keys as regular expressions, which '^' holds to the whole name.
struct OwnNumbers {
  AdapterJson ranks = AdapterJson::object(), alphas = AdapterJson::object();
};

// Numbers as PEFT writes them: whole ones without a point.
AdapterJson json_of(double number) {
  return number == std::floor(number) ? AdapterJson(std::llround(number)) : AdapterJson(number);
}

AdapterJson config_of(const AdapterSpec& spec, const std::set<std::string>& targets,
                      const std::set<std::string>& inputs, const std::set<std::string>& saved, bool fan_in_fan_out,
                      const OwnNumbers& own) {
  AdapterJson config = {{"base_model_name_or_path", nullptr},
                        {"inference_mode", true},
                        {"task_type", nullptr},
                        {"target_modules", targets},
                        {"modules_to_save", saved.empty() ? AdapterJson() : AdapterJson(saved)},
                        {"fan_in_fan_out", fan_in_fan_out}};
  if (spec.method == "ia3") {
    config.update({{"peft_type", "IA3"}, {"feedforward_modules", inputs}, {"init_ia3_weights", true}});
    return config;
  }
  config.update({{"peft_type", "LORA"},
                 {"r", spec.rank},
                 {"lora_alpha", json_of(spec.alpha)},
                 {"lora_dropout", spec.dropout},
                 {"use_rslora", spec.rslora},
                 {"use_dora", spec.dora},
                 {"bias", "none"},
                 {"init_lora_weights", true},
                 {"rank_pattern", own.ranks},
                 {"alpha_pattern", own.alphas}});
  return config;
}

// Whether the tensor is its module's name and the part's, without ".weight".
bool is_bare(const AdapterPart& part) {
  return part.part == parts::kScale || part.part == parts::kInputScale || part.part == parts::kMagnitude;
}

// The weights that PEFT calls fan_in_fan_out: a module's own, [in, out], as GPT-2's Conv1D has them. A and B have one
// form beside both layouts, so that nothing else depends on it. A product that PyTorch's exporter has transposed has a
// name of the exporter's, and is of a Linear.
std::set<std::string> weights_in_first(const Model& model) {
  std::set<std::string> names;
  for (const LinearLayer& layer : LinearLayers(model).all()) {
    const std::string& name = layer.weight->name();
    if (!layer.out_first && layer.module == module_of(name)) names.insert(name);
  }
  return names;
}

// PEFT has a column of an IA3 layer's outputs, a row of its inputs, a vector of DoRA's magnitudes, and (1, n, 1, 1) for
// convolutions, whose weights have `rank` axes.
Tensor in_peft_form(const AdapterPart& part, const Tensor& tensor, int64_t rank) {
  if (!is_bare(part)) return tensor;
  const int64_t size = tensor.size();
  if (rank > 2) {
    Shape shape(static_cast<size_t>(rank), 1);
    shape[1] = size;
    return tensor.reshaped(shape);
  }
  if (part.part == parts::kMagnitude) return tensor;
  return tensor.reshaped(part.part == parts::kScale ? Shape{size, 1} : Shape{1, size});
}

// The names under which PEFT finds a weight that was trained besides: it copies each module that it saves, so that one
// weight of several modules is saved for all.
std::vector<std::string> saved_names(const Value& weight) {
  const Node* unnamed = nullptr;
  std::vector<std::string> names = names_of_readers(weight, &unnamed);
  if (unnamed) {
    fail("'", weight.name(), "' is trained beside the adapters, and ", unnamed->label(),
         " of another module reads it, too, whose name the file does not tell: PEFT would leave that module as it was;",
         " write the merged model instead (export --merge), or freeze the weight");
  }
  names.insert(names.begin(), weight.name());
  return names;
}

// ---- Reading

AdapterJson read_config(const std::string& path) {
  constexpr size_t kMostBytes = size_t{1} << 20;
  const auto file = MappedFile::open(path);
  const std::string_view text(reinterpret_cast<const char*>(file->data()), file->size());
  AdapterJson config = text.size() > kMostBytes ? AdapterJson() : AdapterJson::parse(text, nullptr, false);
  if (!config.is_object()) fail_as(ErrorCode::kFile, path, " is no configuration of an adapter: it is no JSON object");
  return config;
}

template <typename T>
T field(const AdapterJson& config, const std::string& path, const char* key, T otherwise) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return otherwise;
  try {
    return found->get<T>();
  } catch (const AdapterJson::exception&) {
    fail_as(ErrorCode::kFile, path, ": '", key, "' is ",
            found->dump(-1, ' ', true, AdapterJson::error_handler_t::replace));
  }
}

// Of what PEFT has, what a number or a switch would change that is not supported here.
void refuse_unsupported(const AdapterJson& config, const std::string& path) {
  for (const char* key : {"layer_replication", "use_qalora"}) {
    const auto found = config.find(key);
    const bool off =
        found == config.end() || found->is_null() || *found == false || (found->is_structured() && found->empty());
    if (!off) fail_as(ErrorCode::kFile, path, ": adapters with '", key, "' are not supported");
  }
}

// Gives the spec's targets, as the file names them, the numbers that the configuration has for them.
void read_layer_numbers(const std::string& path, AdapterSpec* spec) {
  if (spec->method != "lora") return;
  const AdapterJson config = read_config(path);
  const LayerNumbers ranks(config, path, "rank_pattern"), alphas(config, path, "alpha_pattern");
  for (const std::string& module : spec->targets) {
    const double rank = ranks.of(module, static_cast<double>(spec->rank)), alpha = alphas.of(module, spec->alpha);
    // Through the parser, which knows the valid numbers.
    const auto number = [](double value) { return number_text(value); };
    const AdapterSpec read = parse_adapter("lora", {"rank=" + number(rank), "alpha=" + number(alpha)});
    if (read.rank != spec->rank) spec->rank_patterns.emplace_back("^" + module, read.rank);
    if (read.alpha != spec->alpha) spec->alpha_patterns.emplace_back("^" + module, read.alpha);
  }
}

AdapterSpec read_spec(const std::string& path) {
  const AdapterJson config = read_config(path);
  const auto type = field<std::string>(config, path, "peft_type", "");
  if (type != "LORA" && type != "IA3")
    fail_as(ErrorCode::kFile, path, ": peft_type is '", type, "'; supported are LORA and IA3");
  refuse_unsupported(config, path);
  AdapterSpec spec;
  spec.exact = true;
  if (type == "IA3") {
    spec.method = "ia3";
    const auto inputs = config.find("feedforward_modules");
    if (inputs != config.end() && inputs->is_array())
      spec.feedforward = field<std::vector<std::string>>(config, path, "feedforward_modules", {});
    return spec;
  }
  // Through the parser, which knows the valid numbers.
  const AdapterJson alpha = config.value("lora_alpha", AdapterJson(8)),
                    dropout = config.value("lora_dropout", AdapterJson(0));
  spec = parse_adapter("lora", {"rank=" + config.value("r", AdapterJson(8)).dump(), "alpha=" + alpha.dump(),
                                "dropout=" + dropout.dump()});
  spec.rslora = field<bool>(config, path, "use_rslora", false);
  spec.dora = field<bool>(config, path, "use_dora", false);
  spec.exact = true;
  return spec;
}

bool is_named_by(const std::vector<std::string>& names, const std::string& module) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return module == name || (module.ends_with(name) && module[module.size() - name.size() - 1] == '.');
  });
}

// The tensors of the folder's file by the names that they have in our models; the spec's targets become the layers that
// have some, with their own ranks and alphas.
TensorMap read_tensors(const std::string& folder, AdapterSpec* spec) {
  const std::string path = (fs::path(folder) / kTensors).generic_string();
  TensorMap arrays;
  std::set<std::string> targets, inputs;
  for (const auto& [key, tensor] : read_safetensors(path)) {
    if (!key.starts_with(kPrefix)) {
      fail_as(ErrorCode::kFile, path, ": '", key, "' does not start with ", kPrefix, ", as names of adapters do");
    }
    const std::string name = key.substr(kPrefix.size());
    if (name.ends_with(kASuffix)) {
      targets.insert(without_suffix(name, kASuffix));
    } else if (name.ends_with(kScaleSuffix)) {
      const std::string module = without_suffix(name, kScaleSuffix);
      const bool of_input = is_named_by(spec->feedforward, module);
      (of_input ? inputs : targets).insert(module);
      const Shape& shape = tensor.shape();
      const Shape own = shape.size() > 2 ? Shape(shape.begin() + 1, shape.end()) : Shape{tensor.size()};
      arrays[of_input ? module + std::string(kInputScaleSuffix) : name] = tensor.reshaped(own);
      continue;
    }
    arrays[name] = name.ends_with(kMagnitudeSuffix) ? tensor.reshaped({tensor.size()}) : tensor;
  }
  if (targets.empty() && inputs.empty()) fail_as(ErrorCode::kFile, path, " holds no adapter of a layer");
  spec->targets.assign(targets.begin(), targets.end());
  spec->feedforward.assign(inputs.begin(), inputs.end());
  read_layer_numbers((fs::path(folder) / kConfig).generic_string(), spec);
  return arrays;
}

// Names of the folder as the model has them, where a module that was wrapped for the export has a prefix more.
void add_prefix(const NamePrefix& prefix, AdapterSpec* spec, TensorMap* values) {
  if (prefix.empty()) return;
  for (std::vector<std::string>* modules : {&spec->targets, &spec->feedforward}) {
    for (std::string& module : *modules) module = prefix.apply(module);
  }
  for (auto& [pattern, rank] : spec->rank_patterns) pattern = "^" + prefix.apply(pattern.substr(1));
  for (auto& [pattern, alpha] : spec->alpha_patterns) pattern = "^" + prefix.apply(pattern.substr(1));
  TensorMap named;
  for (const auto& [name, value] : *values) named[prefix.apply(name)] = value;
  *values = std::move(named);
}

// The adapter of a folder, for the model's layers.
AdapterOfFolder read_adapter(Model* model, const std::string& folder) {
  AdapterOfFolder adapter{read_spec((fs::path(folder) / kConfig).generic_string()), {}};
  auto& [spec, values] = adapter;
  values = read_tensors(folder, &spec);
  std::set<std::string> modules;
  for (const LinearLayer& layer : LinearLayers(*model, /*integers=*/true).all()) modules.insert(layer.module);
  std::vector<std::string> targets = spec.targets;
  targets.insert(targets.end(), spec.feedforward.begin(), spec.feedforward.end());
  const NamePrefix prefix = common_prefix(modules, targets);
  add_prefix(prefix, &spec, &values);
  if (!prefix.empty()) add_adapted_note(model, concat(folder, ": ", prefix.text()));
  join_tied(*model->graph, (fs::path(folder) / kTensors).generic_string(), &values);
  return adapter;
}

// Returns the tensors in the folder's file.
TensorMap save_for_peft(const Model& training, const std::string& folder, const std::vector<std::string>& rename) {
  const AdapterSpec spec = parse_adapter_text(training.metadata(kAdapter));
  if (spec.method.empty()) fail("the model has no adapters: write it as .onnx, or its weights as .safetensors");
  if (spec.method == "bitfit") fail("PEFT has no format for BitFit: write all weights, as .safetensors");
  const Graph& graph = *training.graph;
  TensorMap tensors;
  std::set<std::string> targets, inputs, saved;
  OwnNumbers own;
  const std::set<std::string> in_first = weights_in_first(training);
  bool fan_in_fan_out = false;
  for (const AdapterPart& part : adapter_parts(training)) {
    const Value* value = graph.find(part.tensor);
    if (!value || !value->is_initializer()) continue;
    const bool scale = part.part == parts::kScale || part.part == parts::kInputScale;
    const std::string module = module_of_part(part);
    targets.insert(renamed(module, rename));
    if (part.part == parts::kA) {
      const int64_t rank = value->type().shape()[0];
      const std::string pattern = "^" + renamed(module, rename);
      if (rank != spec.rank) own.ranks[pattern] = rank;
      if (spec.alpha_of(module) != spec.alpha) own.alphas[pattern] = json_of(spec.alpha_of(module));
    }
    fan_in_fan_out = fan_in_fan_out || in_first.count(part.weight) > 0;
    if (part.part == parts::kInputScale) inputs.insert(renamed(module, rename));
    const std::string name = scale ? module + std::string(kScaleSuffix) : part.tensor;
    const Value* weight = graph.find(part.weight);
    const int64_t rank = weight && weight->has_rank() ? weight->rank() : 2;
    tensors[std::string(kPrefix) + renamed(name, rename)] = in_peft_form(part, contents_of(*value), rank);
  }
  for (const std::string& besides : trained_besides(training)) {
    const Value* state = graph.find(besides);
    for (const std::string& name : saved_names(*state)) {
      saved.insert(module_of(renamed(name, rename)));
      tensors[std::string(kPrefix) + renamed(name, rename)] = contents_of(*state);
    }
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_as(ErrorCode::kCannotWrite, "cannot make the folder ", folder, ": ", error.message());
  write_safetensors((fs::path(folder) / kTensors).generic_string(), tensors, {{"format", "pt"}});
  const AdapterJson config = config_of(spec, targets, inputs, saved, fan_in_fan_out, own);
  write_file((fs::path(folder) / kConfig).generic_string(),
             config.dump(2, ' ', false, AdapterJson::error_handler_t::replace) + "\n");
  return tensors;
}

}  // namespace

bool is_onnxruntime_adapter(const std::string& path) { return path.ends_with(".onnx_adapter"); }

std::vector<std::string> save_adapters(const Model& training, const std::string& path,
                                       const std::vector<std::string>& rename) {
  const TensorMap tensors =
      is_onnxruntime_adapter(path) ? served_values(training) : save_for_peft(training, path, rename);
  if (is_onnxruntime_adapter(path)) write_onnxruntime_adapter(path, tensors);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

TensorMap adapter_values(const Model& model, const std::string& folder) {
  const AdapterSpec own = parse_adapter_text(model.metadata(kAdapter));
  if (own.method != "lora" && own.method != "ia3") {
    fail_as(ErrorCode::kUsage, "the session's model has no adapters of PEFT: build it with --lora, --ia3 or --adapter");
  }
  const std::string config = (fs::path(folder) / kConfig).generic_string(),
                    path = (fs::path(folder) / kTensors).generic_string();
  AdapterSpec spec = read_spec(config);
  if (spec.method != own.method || spec.dora != own.dora) {
    fail_as(ErrorCode::kData, config, " says ", to_string(spec), "; the model's adapters are ", to_string(own));
  }
  TensorMap values = read_tensors(folder, &spec);
  std::vector<std::string> names;
  for (const auto& [name, value] : values) names.push_back(name);
  add_prefix(common_prefix(weight_names(model), names), &spec, &values);
  join_tied(*model.graph, path, &values);
  for (const AdapterPart& part : adapter_parts(model)) {
    if (!values.count(part.tensor)) fail_as(ErrorCode::kData, path, ": there is no '", kPrefix, part.tensor, "'");
  }
  for (auto& [name, value] : values) {
    const Value* tensor = model.graph->find(name);
    if (!tensor || !tensor->is_initializer()) {
      fail_as(ErrorCode::kData, path, ": the model has no weight '", name, "' that is in the adapter");
    }
    if (tensor->type().shape() != value.shape()) {
      fail_as(ErrorCode::kData, path, ": '", name, "' has the shape ", to_string(value.shape()), "; the model's has ",
              to_string(tensor->type().shape()));
    }
    value = value.cast(tensor->dtype());
  }
  for (const AdapterPart& part : adapter_parts(model)) {
    if (part.part != parts::kB) continue;
    const std::string module = module_of_part(part);
    const int64_t rank = values[part.tensor].shape()[1];
    const double factor = spec.scale(module, rank) / own.scale(module, rank);
    if (factor == 1) continue;
    Tensor scaled = values[part.tensor].clone();
    for (int64_t i = 0; i < scaled.size(); ++i) scaled.set(i, factor * scaled.at(i));
    values[part.tensor] = scaled;
  }
  return values;
}

void load_adapters(Model* model, const std::vector<std::string>& folders) {
  const AdapterSum sum = parse_adapter_sum(folders);
  std::vector<AdapterOfFolder> adapters;
  for (const AdapterSum::Term& term : sum.terms) adapters.push_back(read_adapter(model, term.folder));
  const auto [spec, values] = sum.is_one() ? std::move(adapters[0]) : combined(sum, adapters);
  const auto arrays = std::make_shared<const TensorMap>(values);
  const std::string path = sum.is_one() ? (fs::path(sum.terms[0].folder) / kTensors).string() : "the sum of adapters";
  if (!sum.is_one()) add_adapted_note(model, to_string(sum));
  run_pipeline({add_adapters(spec, 0)}, model);
  for (const auto& [name, tensor] : *arrays) {
    const Value* value = model->graph->find(name);
    if (!value || !value->is_initializer()) {
      fail_as(ErrorCode::kData, path, ": the model has no weight '", name, "' that is in the adapter");
    }
    if (value->type().shape() != tensor.shape()) {
      fail_as(ErrorCode::kData, path, ": '", name, "' has the shape ", to_string(tensor.shape()), "; the model's has ",
              to_string(value->type().shape()), ": a head that was replaced needs --head here, too");
    }
  }
  for (const AdapterPart& part : adapter_parts(*model)) {
    if (!arrays->count(part.tensor)) fail_as(ErrorCode::kData, path, ": there is no '", kPrefix, part.tensor, "'");
  }
  run_pipeline({assign_weights(arrays, path, WeightsOfFile::kOfAdapter)}, model);
  for (const auto& [name, tensor] : *arrays) {  // what is saved beside the adapters was trained, and goes on to be
    if (model->metadata(std::string(kAdapterRecord) + name).empty())
      model->set_metadata(std::string(kHeadRecord) + name, "adapter");
  }
}

}  // namespace onnx_train
