// Training data: named arrays whose rows are samples, checked against a model's inputs, and the batches cut from them.
//
// The sample key is the first input that the loss added ("labels"), or the model's first input where the loss added
// none; its first dimension is the number of samples. An array with that first dimension is cut into batches; one with
// another first dimension, or none, goes whole to each step; scalars alone are one sample. Arrays may be views of
// mapped files; nothing is copied but the rows of a batch. One thread at a time.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "runtime/session.h"

namespace onnx_train {

// An input that data may fill.
struct InputSpec {
  std::string name;
  TensorType type;
  bool from_loss = false;    // added by the loss, not one of the forward model's
  bool has_default = false;  // may be left out
  std::string role = "";     // roles.h: "learning_rate"; "" for data
};

// What an entry point reads besides state, the forward model's inputs first. Throws Error when there is no such entry.
std::vector<InputSpec> entry_inputs(const Model& model, const std::string& entry);
// The same with the flattened entry point at hand.
std::vector<InputSpec> entry_inputs(const Model& model, const std::string& entry, const Model& flat);

class Dataset {
 public:
  // Takes the arrays that `inputs` name and ignores others. Element types are converted where that is lossless or
  // usual: integers and booleans to floats (times `scale`), one float type to another, integers to integers that hold
  // every value. Throws Error that names the array, what was expected and what was found.
  Dataset(const TensorMap& arrays, const std::vector<InputSpec>& inputs, double scale = 1);

  struct Array {
    std::string name;
    Tensor data;      // as it lies in the file
    DType dtype;      // as the model wants it
    Shape row;        // the shape of one sample, or of the whole array
    bool per_sample;  // false: goes whole to each step
  };

  int64_t num_samples() const { return num_samples_; }
  const std::vector<Array>& arrays() const { return arrays_; }
  const Array* find(const std::string& name) const;  // null when there is none
  // The batch size that the model prescribes; 0 when any will do.
  int64_t fixed_batch() const { return fixed_batch_; }
  size_t bytes() const;
  double scale() const { return scale_; }
  // Of names, types, shapes and contents: fingerprint.h says how much of them is read, at the first call.
  const std::string& fingerprint() const;

  // Fills `batch` with the samples rows[0..count), by input name; tensors already there of the right shape are reused.
  void gather(const int64_t* rows, int64_t count, TensorMap* batch) const;

 private:
  std::vector<Array> arrays_;
  int64_t num_samples_ = 0;
  int64_t fixed_batch_ = 0;
  double scale_;
  mutable std::string fingerprint_;
};

// The order in which epoch `epoch` visits `n` samples: a permutation that depends on the arguments alone, on every
// platform; 0, 1, ... when `shuffle` is false.
std::vector<int64_t> sample_order(int64_t n, uint64_t seed, int64_t epoch, bool shuffle);

}  // namespace onnx_train
