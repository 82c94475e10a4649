#include "runtime/models/export_into.h"

#include <filesystem>
#include <map>
#include <optional>
#include <unordered_set>

#include "onnx_passes/adapt/serve_adapters.h"
#include "onnx_passes/adapt/weight_places.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/training/strip_training.h"
#include "runtime/models/build_settings.h"
#include "runtime/models/model_folder.h"

namespace onnx_train {
namespace {

bool is_weight_tensor(const Value& value) {
  return value.is_initializer() && (value.dtype() == DType::kFloat || value.dtype() == DType::kDouble) &&
         value.type().is_static() && num_elements(value.type().shape()) > 0;
}

// The values that weights had before they were trained.
class Untrained {
 public:
  Untrained(const Model& training, const MergedAdapters& merged, std::string base)
      : training_(training), inference_(strip_training(training)), merged_(merged), base_path_(std::move(base)) {
    for (const EntryPoint& entry : training.entry_points) {
      for (const Binding& binding : entry.update_bindings) trained_.insert(binding.state->name());
    }
  }

  Tensor of(const Value& weight) {
    if (const Value* frozen = frozen_weight(weight.name())) return contents_of(*frozen);
    const std::string& name = weight.name();
    if (!training_.metadata(std::string(kHeadRecord) + name).empty())
      fail_as(ErrorCode::kWeightsMisfit, "'", name, "' is of a new head (--head), which no other file has: leave out ",
              "--into");
    const Value* known = base().graph->find(name);
    if (!known || !is_weight_tensor(*known) || known->type().shape() != weight.type().shape())
      fail_as(ErrorCode::kWeightsMisfit, "'", name, "' was trained, and what it was before is not known: ", base_path_,
              !known ? " has no such weight"
              : is_weight_tensor(*known)
                  ? " has another shape of it"
                  : " holds it as integers, into which nothing is merged: --adapter-inputs writes adapters "
                    "beside them",
              "; --base FILE names the model that the training model was built from");
    const Tensor contents = contents_of(*known);
    return contents.dtype() == weight.dtype() ? contents : contents.cast(weight.dtype());
  }

 private:
  // A weight that training leaves as it is. An adapter that unties two names it under the one that the file had.
  const Value* frozen_weight(const std::string& name) const {
    std::vector<std::string> names = {name};
    for (const auto& [merged, base] : merged_.untied) {
      if (name == merged || name == base) names.push_back(name == merged ? base : merged);
    }
    for (const std::string& each : names) {
      const Value* value = inference_.graph->find(each);
      if (value && is_weight_tensor(*value)) return trained_.count(each) ? nullptr : value;
    }
    return nullptr;
  }

  const Model& base() {
    if (base_) return *base_;
    try {
      base_ = load_forward_model(model_file(base_path_));
    } catch (const Error& error) {
      fail_as(error.code(), "the weights before training are those of ", base_path_, ": ", error.what());
    }
    return *base_;
  }

  const Model& training_;
  const Model inference_;
  const MergedAdapters& merged_;
  const std::string base_path_;
  std::unordered_set<std::string> trained_;
  std::optional<Model> base_;
};

void expect_all_found(const PutWeights& put, const std::string& file) {
  if (!put.missing.empty()) {
    fail_as(ErrorCode::kWeightsMisfit, file, " does not hold, as they were before training, ", put.missing.size(),
            put.missing.size() == 1 ? " weight that was trained: " : " weights that were trained: ",
            first_few(put.missing, size_t{3}, [](const std::string& text) { return text; }));
  }
  if (put.weights == 0) fail_as(ErrorCode::kWeightsMisfit, "no weight has changed: ", file, " would stay as it is");
}

// The model of `file` with the weights in it, or with inputs for adapters beside them.
IntoExport put_into(const Model& training, const ExportSettings& settings, const std::vector<TrainedWeight>& weights,
                    const std::string& file) {
  IntoExport made{load_message(file), {}, {}};
  if (!made.message.proto.training_info().empty())
    fail_as(ErrorCode::kWeightsMisfit, file, " is a training model; take the model that is served");
  made.put = put_weights(weights, file, &made.message);
  if (!settings.adapter_inputs) {
    expect_all_found(made.put, file);
    return made;
  }
  Model served = from_message(std::move(made.message));
  made.inputs = serve_adapters_beside(training, made.put.tensors_of, file, &served);
  made.message = to_message(served);
  return made;
}

std::string base_of(const ExportSettings& settings) { return settings.base.empty() ? settings.into : settings.base; }

// All models of the folder that hold some of the weights; the main one has to hold them all.
WrittenInto write_into_folder(const Model& training, const ExportSettings& settings, const std::string& name,
                              const std::string& output) {
  const std::string file = model_file(settings.into);
  const std::vector<TrainedWeight> weights = trained_weights(training, settings, name, base_of(settings));
  std::map<std::string, ModelMessage> models;
  WrittenInto written;
  for (const std::string& path : models_of_folder(settings.into)) {
    const std::string other = (std::filesystem::path(settings.into) / path).generic_string();
    if (std::filesystem::equivalent(other, file)) {
      IntoExport main = put_into(training, settings, weights, other);
      models.emplace(path, std::move(main.message));
      written.decoder = path;
      written.put = std::move(main.put);
      written.inputs = std::move(main.inputs);
      continue;
    }
    ModelMessage message;
    try {
      message = load_message(other);
    } catch (const Error& error) {
      written.notes.push_back(concat(path, " is copied as it is, since it cannot be read: ", error.what()));
      continue;
    }
    PutWeights put;
    if (message.proto.training_info().empty()) put = put_weights(weights, other, &message);
    if (put.weights == 0) {
      written.notes.push_back(concat(path, " holds none of the trained weights, and is copied as it is"));
      continue;
    }
    written.notes.push_back(
        concat(path, ": ", put.weights, " of ", put.weights + put.missing.size(), " trained weights are there, too"));
    models.emplace(path, std::move(message));
  }
  write_folder_like(settings.into, models, output);
  return written;
}

}  // namespace

std::vector<TrainedWeight> trained_weights(const Model& training, const ExportSettings& settings,
                                           const std::string& name, const std::string& base) {
  for (const auto& entry : training.shell().metadata_props()) {
    if (entry.key().starts_with(kGrownRecord))
      fail_as(ErrorCode::kWeightsMisfit, "'", entry.key().substr(kGrownRecord.size()), "' has ", entry.value(),
              " (--resize-vocabulary), for which no other file has room: leave out --into; export --merge -o "
              "MODEL.onnx writes ",
              "the model with all of them");
  }
  if (!settings.tta.empty() || stores_other_type(settings) || settings.original_types)
    fail_as(ErrorCode::kUsage, "--into leaves all but the weights of a model as it is: --tta, --dtype and ",
            "--original-types do not go with it");
  const InferenceExport made = strip_and_merge(training, settings, name);
  if (has_adapters(made.model) && !settings.adapter_inputs)
    fail_as(ErrorCode::kUsage,
            "--into puts weights where they were, and adapters are layers of their own: add --merge, ",
            "or --adapter-inputs");
  std::unordered_set<std::string> parts;
  for (const AdapterPart& part : adapter_parts(made.model)) parts.insert(part.tensor);
  std::vector<const Value*> values;
  for (const Value* value : made.model.graph->initializers()) {
    if (is_weight_tensor(*value) && !parts.count(value->name())) values.push_back(value);
  }
  Untrained untrained(training, made.merged, base);
  std::vector<TrainedWeight> weights;
  for (std::vector<std::string>& names : names_of_weights(made.model, values)) {
    const Value& value = *values[weights.size()];
    weights.push_back({std::move(names), untrained.of(value), contents_of(value)});
  }
  return weights;
}

IntoExport export_into(const Model& training, const ExportSettings& settings, const std::string& name) {
  const std::string file = model_file(settings.into);
  return put_into(training, settings, trained_weights(training, settings, name, base_of(settings)), file);
}

WrittenInto write_into(const Model& training, const ExportSettings& settings, const std::string& name,
                       const std::string& output) {
  std::error_code error;
  if (std::filesystem::is_directory(settings.into, error)) return write_into_folder(training, settings, name, output);
  if (!output.ends_with(".onnx") || std::filesystem::is_directory(output, error))
    fail_as(ErrorCode::kUsage, "--into ", settings.into, " writes a model: give -o a .onnx file, not ", output);
  if (std::filesystem::equivalent(settings.into, output, error))
    fail_as(ErrorCode::kUsage, "-o is the file of --into: give it another name");
  const IntoExport made = export_into(training, settings, name);
  save_like(made.message, settings.into, output);
  return {made.put, made.inputs, "", {}};
}

std::vector<std::string> lines_of(const WrittenInto& written, const std::string& output) {
  const auto text = [](const std::string& line) { return line; };
  const PutWeights& put = written.put;
  const std::string of = written.decoder.empty() ? "" : concat(" of ", written.decoder);
  std::vector<std::string> lines;
  if (written.inputs.empty()) {
    lines.push_back(concat(output, ": ", put.weights, " trained weights in ", put.tensors, " tensors", of));
  } else {
    lines.push_back(concat(output, ": inputs for adapters beside ", written.inputs.size() / 2, " weights", of));
    lines.push_back(inputs_note(written.inputs));
  }
  if (!put.how.empty()) lines.push_back(concat("not simply by another name: ", first_few(put.how, size_t{3}, text)));
  if (!put.left.empty())
    lines.push_back(concat("may be weights that were trained: ", first_few(put.left, size_t{3}, text)));
  lines.insert(lines.end(), written.notes.begin(), written.notes.end());
  return lines;
}

}  // namespace onnx_train
