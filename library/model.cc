// Models of the C interface.
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "library/guard.h"
#include "library/handles.h"
#include "onnx_passes/derivatives/derivative.h"
#include "onnx_passes/derivatives/differentiate.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/model/plain_model.h"
#include "onnx_passes/pipeline/kept_faults.h"
#include "runtime/data/loading/source.h"
#include "runtime/data/texts/packing.h"
#include "runtime/models/adapt.h"
#include "runtime/models/build_notes.h"
#include "runtime/models/build_settings.h"
#include "runtime/models/export_into.h"
#include "runtime/models/inference_export.h"
#include "runtime/models/kept_settings.h"
#include "runtime/models/model_folder.h"
#include "runtime/models/sizes_of_data.h"
#include "runtime/onnxruntime/training_import.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/default_build.h"

namespace onnx_train {
namespace {

void give(ModelMessage message, onnx_train_model** to) {
  required(to, "where the model goes");
  *to = new onnx_train_model(std::move(message));
}

Model training_model_of(const onnx_train_model* model) {
  return training_model(required(model, "the model").message, "the model");
}

// `loss`, unless it is null, takes the place of the option of that name.
Model built(const onnx_train_model* forward, const onnx_train_model* loss, const onnx_train_option* options,
            size_t count) {
  BuildSettings settings;
  settings.build.loss.clear();
  bool evaluation = false;
  std::vector<CommandOption> known = joined(build_options(&settings), {{"--evaluation", &evaluation, ""}});
  if (loss) std::erase_if(known, [](const CommandOption& option) { return key_of(option) == "loss"; });
  read_options(options, count, known);
  if (loss) {
    const std::string& name = loss->message.proto.graph().name();
    settings.build.loss_model = import_loss_model(loss->message, name.empty() ? "a model" : name, settings.dtype);
  }
  const ModelMessage& message = required(forward, "the forward model").message;
  return keeping_faults(settings.build.pipeline, [&](const PipelineOptions& pipeline) {
    BuildSettings own = settings;
    own.build.pipeline = pipeline;
    std::vector<std::string> kept;
    std::vector<Finding> imported;
    Model model = import_to_build(message, &own, &kept, &imported);
    const BuildOptions resolved = resolve(own);
    if (evaluation) {
      build_evaluation_model(&model, resolved);
    } else {
      build_with_notes(&model, resolved, std::move(imported));
    }
    return model;
  });
}

// As onnx_train_model_build_for_data; `note` says what has been chosen.
Model built_for_data(const onnx_train_model* forward, const char* path, const TensorMap& arrays,
                     const onnx_train_option* options, size_t count, std::string* note) {
  BuildSettings settings;
  settings.build.loss.clear();
  ReadOptions reading;
  read_options(options, count, joined(build_options(&settings), data_options(&reading)));
  reading.role = DataRole::kTrain;
  settings.import.adapt.document_mask = settings.import.adapt.document_mask || packs(reading.packing);
  fit_vocabulary(reading.tokenizer, &settings.import.adapt);
  DefaultBuild built = build_for_data(
      required(forward, "the forward model").message, settings,
      [&](const Model& model) {
        return path ? guess_loss(model, path, reading) : guess_loss(model, arrays, "the data");
      },
      [&](const Model& model) {
        const std::vector<InputSpec> inputs = entry_inputs(model, Entry::kPredict);
        return path ? load_dataset(path, inputs, DataRole::kTrain, {}, reading) : Dataset(arrays, inputs);
      });
  *note = concat("loss ", built.loss, built.why.empty() ? "" : concat(" (", built.why, ")"), ", optimizer ",
                 settings.build.optimizer, built.sizes.empty() ? "" : concat("; ", built.sizes));
  if (settings.precision == "auto") {
    const AutomaticPrecision precision = automatic_precision(settings);
    *note += concat(", precision ", precision.kind, " (", precision.why, ")");
  }
  return std::move(built.model);
}

// The options of `build` that have a meaning without a loss and an optimizer.
std::vector<CommandOption> differentiate_options(BuildSettings* settings) {
  std::vector<CommandOption> options = build_options(settings);
  std::erase_if(options, [](const CommandOption& option) {
    const std::string name = key_of(option);
    return name == "loss" || name == "optimizer" || name == "loss-scale" || name == "decay" || name == "clip" ||
           name == "group" || name == "layer-decay" || name == "clip-value" || name == "ema" || name == "swa" ||
           name == "swa-every" || name == "accumulate" || name == "accumulate-mean" || name == "init" ||
           name == "device";
  });
  return options;
}

Model derivative_of(const onnx_train_model* forward, const std::string& kind, const onnx_train_model* loss,
                    const onnx_train_option* options, size_t count) {
  BuildSettings settings;
  std::vector<CommandOption> known = differentiate_options(&settings);
  for (CommandOption& option : build_options(&settings)) {
    if (!loss && key_of(option) == "loss") known.push_back(std::move(option));
  }
  read_options(options, count, known);
  if (loss) settings.build.loss_model = import_loss_model(loss->message, "the loss", settings.dtype);
  const BuildOptions resolved = resolve(settings);
  std::vector<std::string> left_out;
  Model result = derivative(
      import_forward_model(required(forward, "the forward model").message, settings.dtype, import_options(settings)),
      parse_derivative(kind), resolved, &left_out);
  std::vector<Finding> notes;
  for (const std::string& text : left_out) notes.push_back({"", text, ""});
  record_notes(notes, &result);
  return result;
}

DifferentiatedModel differentiated(const onnx_train_model* forward, const onnx_train_option* options, size_t count) {
  BuildSettings settings;
  read_options(options, count, differentiate_options(&settings));
  const BuildOptions resolved = resolve(settings);
  return differentiate(
      import_forward_model(required(forward, "the forward model").message, settings.dtype, import_options(settings)),
      resolved);
}

// Replaces the contents of an initializer.
void assign(const Tensor& value, const std::string& name, onnx::TensorProto* weight, ModelMessage* message) {
  const auto dtype = static_cast<DType>(weight->data_type());
  const Shape shape(weight->dims().begin(), weight->dims().end());
  if (value.shape() != shape) {
    fail_as(ErrorCode::kData, "weight '", name, "' has the shape ", to_string(value.shape()), "; the model's has ",
            to_string(shape));
  }
  const bool converts =
      (is_float(value.dtype()) && is_float(dtype)) || (is_integer(value.dtype()) && is_integer(dtype));
  if (value.dtype() != dtype && !converts) {
    fail_as(ErrorCode::kData, "weight '", name, "' is ", onnx_train::name(value.dtype()), "; the model's is ",
            onnx_train::name(dtype));
  }
  const Tensor contents = value.dtype() == dtype ? value.clone() : value.cast(dtype);
  if (const auto index = reference_of(*weight)) {
    message->contents[*index] = contents;
  } else {
    put_beside(contents, &message->contents, weight);
  }
}

ModelMessage with_weights(ModelMessage message, const TensorMap& weights, bool strict) {
  std::set<std::string> names;
  for (const auto& [name, value] : weights) names.insert(name);
  widen_stored_weights(&message, names);
  std::map<std::string, onnx::TensorProto*> known;
  const auto add = [&](onnx::GraphProto* graph) {
    for (auto& tensor : *graph->mutable_initializer()) known.emplace(tensor.name(), &tensor);
  };
  add(message.proto.mutable_graph());
  for (auto& entry : *message.proto.mutable_training_info()) add(entry.mutable_algorithm());
  for (const auto& [name, value] : weights) {
    const auto found = known.find(name);
    if (found == known.end() && !strict) continue;
    if (found == known.end()) fail_as(ErrorCode::kData, "the model has no weight '", name, "'");
    assign(value, name, found->second, &message);
  }
  return message;
}

void serialize(const onnx_train_model* model, void** data, size_t* bytes) {
  required(data, "where the bytes go");
  required(bytes, "where their number goes");
  const onnx::ModelProto proto = with_contents(required(model, "the model").message);
  const size_t size = proto.ByteSizeLong();
  if (size > kMaxMessageBytes) fail("the model has ", size, " bytes, an ONNX message ends at 2 GiB; save it to a file");
  std::unique_ptr<void, decltype(&std::free)> buffer(std::malloc(std::max<size_t>(size, 1)), std::free);
  if (!buffer || !proto.SerializeToArray(buffer.get(), static_cast<int>(size))) throw std::bad_alloc();
  *data = buffer.release();
  *bytes = size;
}

}  // namespace
}  // namespace onnx_train

using namespace onnx_train;

const std::vector<onnx_train_finding>& ModelNotes::of(const ModelMessage& model) const {
  std::call_once(read_, [&] {
    notes_ = recorded_notes(model.proto);
    findings_.clear();  // of an attempt for which there was not enough memory
    for (const Finding& note : notes_)
      findings_.push_back({note.subject.c_str(), note.what.c_str(), note.advice.c_str()});
  });
  return findings_;
}

extern "C" {

onnx_train_status onnx_train_model_load(const char* path, onnx_train_model** model) {
  return guarded([&] {
    const std::string file = &required(path, "the path");
    give(is_ort_training(file) ? to_message(import_ort_training({file}).model) : load_message(model_file(file)), model);
  });
}

onnx_train_status onnx_train_model_from_bytes(const void* data, size_t bytes, onnx_train_model** model) {
  return guarded([&] {
    if (!data) throw UsageError("the model's bytes are null");
    give(load_message(data, bytes), model);
  });
}

void onnx_train_model_free(onnx_train_model* model) { delete model; }

onnx_train_status onnx_train_model_save(const onnx_train_model* model, const char* path) {
  return guarded([&] {
    check_suffix(&required(path, "the path"), ".onnx");
    save_message(required(model, "the model").message, path);
  });
}

onnx_train_status onnx_train_model_to_bytes(const onnx_train_model* model, void** data, size_t* bytes) {
  return guarded([&] { serialize(model, data, bytes); });
}

void onnx_train_free(void* data) { std::free(data); }

const char* onnx_train_model_metadata(const onnx_train_model* model, size_t i, const char** key) {
  if (!model || i >= static_cast<size_t>(model->message.proto.metadata_props_size())) return nullptr;
  const auto& entry = model->message.proto.metadata_props(static_cast<int>(i));
  if (key) *key = entry.key().c_str();
  return entry.value().c_str();
}

size_t onnx_train_model_notes(const onnx_train_model* model, const onnx_train_finding** notes) {
  size_t count = 0;
  if (notes) *notes = nullptr;
  if (!model) return count;
  guarded([&] {
    const std::vector<onnx_train_finding>& found = model->notes.of(model->message);
    if (notes) *notes = found.data();
    count = found.size();
  });
  return count;
}

onnx_train_status onnx_train_model_build(const onnx_train_model* forward, const onnx_train_option* options,
                                         size_t count, onnx_train_model** training) {
  return guarded([&] { give(to_message(built(forward, nullptr, options, count)), training); });
}

onnx_train_status onnx_train_model_build_with_loss(const onnx_train_model* forward, const onnx_train_model* loss,
                                                   const onnx_train_option* options, size_t count,
                                                   onnx_train_model** training) {
  return guarded(
      [&] { give(to_message(built(forward, &required(loss, "the loss model"), options, count)), training); });
}

onnx_train_status onnx_train_model_build_for_data(const onnx_train_model* forward, const char* path,
                                                  const onnx_train_tensor* arrays, size_t num_arrays,
                                                  const onnx_train_option* options, size_t count,
                                                  onnx_train_model** training, const char** note) {
  static thread_local std::string text;
  return guarded([&] {
    const TensorMap tensors = path ? TensorMap() : views_of(arrays, num_arrays);
    give(to_message(built_for_data(forward, path, tensors, options, count, &text)), training);
    if (note) *note = text.c_str();
  });
}

onnx_train_status onnx_train_model_sizes(const onnx_train_model* forward, const onnx_train_tensor* arrays,
                                         size_t num_arrays, const char** sizes) {
  static thread_local std::string text;
  return guarded([&] {
    const Model model = import_forward_model(required(forward, "the forward model").message, BuildSettings().dtype,
                                             import_options(BuildSettings()));
    const Dataset data(views_of(arrays, num_arrays), entry_inputs(model, Entry::kPredict));
    text.clear();
    for (const std::string& size : sizes_of_data(model, data, {}, /*is_one_batch=*/false))
      text += concat(text.empty() ? "" : ",", size);
    required(sizes, "where the sizes go") = text.c_str();
  });
}

onnx_train_status onnx_train_model_derivative(const onnx_train_model* forward, const char* kind,
                                              const onnx_train_model* loss, const onnx_train_option* options,
                                              size_t count, onnx_train_model** derivative) {
  return guarded([&] {
    give(to_message(derivative_of(forward, &required(kind, "the kind of derivative"), loss, options, count)),
         derivative);
  });
}

onnx_train_status onnx_train_model_differentiate(const onnx_train_model* forward, const onnx_train_option* options,
                                                 size_t count, onnx_train_model** forward_pass,
                                                 onnx_train_model** backward_pass) {
  return guarded([&] {
    required(forward_pass, "where the forward pass goes");
    required(backward_pass, "where the backward pass goes");
    const DifferentiatedModel passes = differentiated(forward, options, count);
    std::unique_ptr<onnx_train_model> first(new onnx_train_model(to_message(passes.forward)));
    *backward_pass = new onnx_train_model(to_message(passes.backward));
    *forward_pass = first.release();
  });
}

onnx_train_status onnx_train_model_with_weights(const onnx_train_model* model, const onnx_train_tensor* tensors,
                                                size_t count, int32_t strict, onnx_train_model** changed) {
  return guarded([&] {
    give(with_weights(required(model, "the model").message, views_of(tensors, count), strict != 0), changed);
  });
}

onnx_train_status onnx_train_model_export(const onnx_train_model* training, onnx_train_model** inference) {
  return guarded([&] { give(export_message(training_model_of(training), {}, "the model"), inference); });
}

onnx_train_status onnx_train_model_export_with(const onnx_train_model* training, const onnx_train_option* options,
                                               size_t count, onnx_train_model** inference) {
  return guarded([&] {
    ExportSettings settings;
    read_options(options, count, export_options(&settings));
    give(export_message(training_model_of(training), settings, "the model"), inference);
  });
}

onnx_train_status onnx_train_model_export_into(const onnx_train_model* training, const onnx_train_option* options,
                                               size_t count, const char* path, const char** note) {
  static thread_local std::string text;
  return guarded([&] {
    ExportSettings settings;
    read_options(options, count, export_options(&settings));
    required(path, "the path");
    if (settings.into.empty()) throw UsageError("the option \"into\" names the model or the folder to write anew");
    const WrittenInto written = write_into(training_model_of(training), settings, "the model", path);
    text.clear();
    for (const std::string& line : lines_of(written, path)) text += concat(text.empty() ? "" : "\n", line);
    if (note) *note = text.c_str();
  });
}

onnx_train_status onnx_train_model_save_adapter(const onnx_train_model* training, const char* folder) {
  return guarded([&] {
    required(folder, "the folder");
    save_adapters(training_model_of(training), folder);
  });
}

onnx_train_status onnx_train_model_flatten(const onnx_train_model* training, const char* entry,
                                           onnx_train_model** flat) {
  return guarded(
      [&] { give(to_message(plain_model(training_model_of(training), &required(entry, "the entry point"))), flat); });
}
}
