// Training data: named arrays whose rows are samples, checked against a model's inputs, and the batches cut from them.
//
// The sample key is the first input that the loss added ("labels"), or the model's first input if the loss added none;
// its first dimension is the number of samples. An array with the same first dimension is cut into batches; any other
// array is passed whole to each step; scalars alone are one sample. Arrays may be views of mapped files; only the rows
// of a batch are copied. The caller owns the dataset and uses it from one thread at a time.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "runtime/data/preprocess.h"
#include "runtime/session.h"

namespace onnx_train {

// An input that data may provide.
struct InputSpec {
  std::string name;
  TensorType type;
  bool from_loss = false;    // added by the loss, not one of the forward model's
  bool has_default = false;  // may be left out
  std::string role = "";     // roles.h: "learning_rate"; "" for data
};

// The inputs of an entry point except states; those of the forward model come first. Throws Error if there is no such
// entry.
std::vector<InputSpec> entry_inputs(const Model& model, const std::string& entry);
// The same for a flattened entry point.
std::vector<InputSpec> entry_inputs(const Model& model, const std::string& entry, const Model& flat);

inline constexpr int64_t kUsualBatch = 32;

class Dataset {
 public:
  // Takes the arrays named in `inputs` and ignores others. Element types are converted if that is lossless or
  // customary: integers and booleans to floats, floats to floats, integers to integers that hold every value. Float
  // inputs are multiplied by what `preprocess` says. Throws Error that names the array, what was expected and what was
  // found.
  Dataset(const TensorMap& arrays, const std::vector<InputSpec>& inputs, const Preprocess& preprocess = {});

  struct Array {
    std::string name;
    Tensor data;      // as stored in the file
    DType dtype;      // as the model expects it
    Shape row;        // the shape of one sample, or of the whole array
    bool per_sample;  // false: passed whole to each step
    double scale;     // the elements are multiplied by it
  };

  int64_t num_samples() const { return num_samples_; }
  const std::vector<Array>& arrays() const { return arrays_; }
  const Array* find(const std::string& name) const;  // null when there is none
  // The batch size that the model prescribes; 0 if any is possible.
  int64_t fixed_batch() const { return fixed_batch_; }
  // The batch size of a training that is told none: the model's if it prescribes one, else 32, or all samples where
  // there are fewer.
  int64_t usual_batch() const { return fixed_batch_ > 0 ? fixed_batch_ : std::min(kUsualBatch, num_samples_); }
  size_t bytes() const;
  const Preprocess& preprocess() const { return preprocess_; }
  // The fingerprint of names, types, shapes and contents (fingerprint.h says how much is read), computed at the first
  // call.
  const std::string& fingerprint() const;

  // Fills `batch` with the samples rows[0..count), by input name; reuses tensors that already have the right shape.
  void gather(const int64_t* rows, int64_t count, TensorMap* batch) const;

 private:
  std::vector<Array> arrays_;
  int64_t num_samples_ = 0;
  int64_t fixed_batch_ = 0;
  Preprocess preprocess_;
  mutable std::string fingerprint_;
};

// The order in which epoch `epoch` visits `n` samples: a permutation that depends only on the arguments, on every
// platform; 0, 1, ... if `shuffle` is false.
std::vector<int64_t> sample_order(int64_t n, uint64_t seed, int64_t epoch, bool shuffle);

}  // namespace onnx_train
