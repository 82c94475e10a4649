// Data files of the C interface.
#include <memory>

#include "library/guard.h"
#include "library/handles.h"
#include "runtime/data/readers.h"
#include "runtime/data/source.h"
#include "runtime/training/trainer.h"

namespace onnx_train {
namespace {

// Pictures as far as is known before a program says how they are read: their number.
Dataset samples_of(const PictureFiles& files, const std::vector<InputSpec>& inputs) {
  for (const InputSpec& spec : inputs) {
    if (spec.name != first_input(inputs) || !spec.type.has_rank()) continue;
    Shape shape;
    for (const Dim& dim : *spec.type.dims) shape.push_back(dim.known() ? dim.value() : 1);
    if (!shape.empty()) shape[0] = static_cast<int64_t>(files.files.size());
    return Dataset({{spec.name, Tensor::on_device(spec.type.dtype, shape, nullptr)}}, {spec});
  }
  fail_as(ErrorCode::kData, files.root, " holds pictures, but the model has no input for them");
}

std::unique_ptr<onnx_train_dataset> open_for(const Session& session, const std::string& path, const char* entry) {
  const std::string name = entry ? entry : session.model().entry_points.empty() ? "predict" : training_entry(session);
  const std::vector<InputSpec> inputs = entry_inputs(session.model(), name);
  auto dataset = std::make_unique<onnx_train_dataset>();
  DataArrays arrays = read_arrays(path, session.model(), name, inputs);
  dataset->pictures = arrays.pictures;
  dataset->tensors = std::move(arrays.tensors);
  dataset->pictures ? dataset->data.emplace(samples_of(*dataset->pictures, inputs))
                    : dataset->data.emplace(dataset->tensors, inputs);
  return dataset;
}

// Makes the views that the handle gives.
onnx_train_dataset* finished(std::unique_ptr<onnx_train_dataset> dataset, const std::string& path) {
  dataset->path = path;
  dataset->arrays = described(dataset->tensors);
  return dataset.release();
}

}  // namespace
}  // namespace onnx_train

using namespace onnx_train;

extern "C" {

onnx_train_status onnx_train_dataset_open(const char* path, onnx_train_session* session, const char* entry,
                                          onnx_train_dataset** dataset) {
  if (session) {
    return in_session(session, [&](onnx_train_session& s) {
      const std::string from = &required(path, "the path of the data");
      required(dataset, "where the dataset goes") = finished(open_for(s.session, from, entry), from);
    });
  }
  return guarded([&] {
    const std::string from = &required(path, "the path of the data");
    if (entry) throw UsageError("the entry point '" + std::string(entry) + "' has no session");
    auto opened = std::make_unique<onnx_train_dataset>();
    opened->tensors = read_arrays(from);
    required(dataset, "where the dataset goes") = finished(std::move(opened), from);
  });
}

void onnx_train_dataset_free(onnx_train_dataset* dataset) { delete dataset; }

onnx_train_status onnx_train_dataset_arrays(const onnx_train_dataset* dataset, const onnx_train_tensor** arrays,
                                            size_t* count) {
  return guarded([&] {
    const onnx_train_dataset& opened = required(dataset, "the dataset");
    if (opened.pictures) throw UsageError(opened.path + " holds pictures, which are read when a model needs them");
    required(arrays, "where the arrays go") = opened.arrays.data();
    required(count, "where their number goes") = opened.arrays.size();
  });
}

onnx_train_status onnx_train_dataset_size(const onnx_train_dataset* dataset, int64_t batch_size, int64_t* samples,
                                          int64_t* batches) {
  return guarded([&] {
    const onnx_train_dataset& opened = required(dataset, "the dataset");
    if (!opened.data) throw UsageError(opened.path + " was opened without a session, which knows what a sample is");
    if (batch_size < 0) throw UsageError("the batch size must be at least 1");
    const int64_t n = opened.data->num_samples(), size = batch_size > 0 ? batch_size : opened.data->usual_batch();
    required(samples, "where the number of samples goes") = n;
    required(batches, "where the number of batches goes") =
        n / size + (opened.data->fixed_batch() == 0 && n % size > 0);
  });
}
}
