// Data files of the C interface.
#include <iterator>
#include <memory>

#include "library/guard.h"
#include "library/handles.h"
#include "onnx_passes/model/table_metadata.h"
#include "runtime/data/class_names.h"
#include "runtime/data/files/readers.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/data/loading/source.h"
#include "runtime/training/trainer.h"

namespace onnx_train {
namespace {

// Of pictures, before a program says how they are read.
SampleCount count_of(const PictureFiles& files, const std::vector<InputSpec>& inputs) {
  for (const InputSpec& spec : inputs) {
    if (spec.name != first_input(inputs) || !spec.type.has_rank() || spec.type.rank() == 0) continue;
    const Dim& batch = (*spec.type.dims)[spec.sample_axis];
    return {static_cast<int64_t>(files.files.size()), batch.known() ? batch.value() : 0};
  }
  fail_as(ErrorCode::kData, files.root, " holds pictures, but the model has no input for them");
}

// A training that reads a table gives the model the names of its classes and categories: tables that are opened later
// for an evaluation are read alike.
std::unique_ptr<onnx_train_dataset> open_for(Session* session, const std::string& path, const char* entry,
                                             const ReadOptions& options) {
  const bool is_training = !session->model().entry_points.empty();
  const EntryName name = entry ? EntryName(entry) : is_training ? training_entry(*session) : Entry::kPredict;
  const std::vector<InputSpec> inputs = entry_inputs(session->model(), name);
  auto dataset = std::make_unique<onnx_train_dataset>();
  dataset->read = read_arrays(path, session->model(), name, inputs, options);
  const DataArrays& read = dataset->read;
  dataset->count = read.pictures ? count_of(*read.pictures, inputs) : Dataset(read, inputs).count();
  if (read.pictures) {
    dataset->add_pictures = [inputs, preprocess = Preprocess(session->model()),
                             classes = classes_from_json(session->model().metadata(kClassNames))](DataArrays* data) {
      Preprocess steps = preprocess;
      add_pictures(inputs, classes, "", /*trains=*/false, &steps, data);
    };
  }
  if (is_training && name == training_entry(*session)) {
    for (const auto& [key, value] : dataset->read.metadata) session->set_metadata(key, value);
  }
  return dataset;
}

}  // namespace
}  // namespace onnx_train

using namespace onnx_train;

extern "C" {

onnx_train_status onnx_train_dataset_open(const char* path, onnx_train_session* session, const char* entry,
                                          onnx_train_dataset** dataset) {
  return onnx_train_dataset_open_with(path, session, entry, nullptr, 0, dataset);
}

onnx_train_status onnx_train_dataset_open_with(const char* path, onnx_train_session* session, const char* entry,
                                               const onnx_train_option* options, size_t count,
                                               onnx_train_dataset** dataset) {
  const auto open = [&](Session* opened_for) {
    onnx_train_dataset*& to = required(dataset, "where the dataset goes");
    const std::string from = &required(path, "the path of the data");
    ReadOptions reading;
    read_options(options, count, data_options(&reading));
    std::unique_ptr<onnx_train_dataset> opened;
    if (opened_for) {
      opened = open_for(opened_for, from, entry, reading);
    } else {
      if (entry) throw UsageError("the entry point '" + std::string(entry) + "' has no session");
      opened = std::make_unique<onnx_train_dataset>();
      opened->read = arrays_of(read_arrays(from));
    }
    opened->path = from;
    opened->reading = reading;
    to = opened.release();
  };
  if (session) return in_session(session, [&](onnx_train_session& s) { open(&s.session); });
  return guarded([&] { open(nullptr); });
}

void onnx_train_dataset_free(onnx_train_dataset* dataset) { delete dataset; }

onnx_train_status onnx_train_dataset_arrays(const onnx_train_dataset* dataset, const onnx_train_tensor** arrays,
                                            size_t* count) {
  return guarded([&] {
    required(dataset, "the dataset");
    auto& opened = *const_cast<onnx_train_dataset*>(dataset);
    std::call_once(opened.described, [&] {
      DataArrays all = opened.read;
      if (opened.add_pictures) opened.add_pictures(&all);
      for (const auto& [name, rows] : all.arrays) opened.tensors[name] = rows.read_all();
      opened.arrays = described(opened.tensors);
    });
    required(arrays, "where the arrays go") = opened.arrays.data();
    required(count, "where their number goes") = opened.arrays.size();
  });
}

onnx_train_status onnx_train_dataset_size(const onnx_train_dataset* dataset, int64_t batch_size, int64_t* samples,
                                          int64_t* batches) {
  return guarded([&] {
    const onnx_train_dataset& opened = required(dataset, "the dataset");
    if (!opened.count) throw UsageError(opened.path + " was opened without a session, which knows what a sample is");
    if (batch_size < 0) throw UsageError("the batch size must be at least 1");
    const int64_t n = opened.count->samples, size = batch_size > 0 ? batch_size : opened.count->usual_batch();
    required(samples, "where the number of samples goes") = n;
    required(batches, "where the number of batches goes") = n / size + (opened.count->fixed_batch == 0 && n % size > 0);
  });
}

const char* onnx_train_dataset_metadata(const onnx_train_dataset* dataset, size_t i, const char** key) {
  if (!dataset || i >= dataset->read.metadata.size()) return nullptr;
  const auto& [name, text] = *std::next(dataset->read.metadata.begin(), static_cast<std::ptrdiff_t>(i));
  if (key) *key = name.c_str();
  return text.c_str();
}

onnx_train_status onnx_train_safetensors_open(const char* path, onnx_train_dataset** dataset) {
  return guarded([&] {
    onnx_train_dataset*& to = required(dataset, "where the dataset goes");
    auto opened = std::make_unique<onnx_train_dataset>();
    opened->path = &required(path, "the path of the file");
    std::map<std::string, std::string> texts;
    opened->read = arrays_of(read_safetensors(opened->path, &texts));
    opened->read.metadata = std::move(texts);
    to = opened.release();
  });
}

onnx_train_status onnx_train_safetensors_save(const char* path, const onnx_train_tensor* tensors, size_t count,
                                              const onnx_train_option* metadata, size_t num_metadata) {
  return guarded([&] {
    std::map<std::string, std::string> texts;
    for (size_t i = 0; i < num_metadata; ++i) texts[metadata[i].name] = metadata[i].value;
    write_safetensors(&required(path, "the path of the file"), views_of(tensors, count), texts);
  });
}
}
