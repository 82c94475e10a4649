// Training data: named arrays whose rows are samples, checked against a model's inputs, and the batches cut from them.
//
// The sample key is the first input that the loss added ("labels"), or the model's first input if the loss added none;
// its first dimension is the number of samples. An array with the same first dimension is cut into batches; any other
// array is passed whole to each step; scalars alone are one sample. Where the model gives the batch's size to another
// axis of an input, [steps, batch, features], that axis counts in the place of the first (sample_axes.h). Arrays may be
// views of mapped files, or rows that a reader makes when a batch needs them, such as pictures; only the rows of a
// batch are copied. Where the loss compares pairs, a sample is two rows of the array that follow each other, and `row`
// below has an axis for them. A dataset may be a selection of the samples of another. The caller owns the dataset. Any
// thread may gather batches; all else is for one thread at a time.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "runtime/data/data_arrays.h"
#include "runtime/data/preprocess.h"

namespace onnx_train {

// An input that data may provide.
struct InputSpec {
  std::string name;
  TensorType type;
  bool from_loss = false;     // added by the loss, not one of the forward model's
  bool has_default = false;   // may be left out
  std::string role = "";      // roles.h: "learning_rate"; "" for data
  std::string of_bytes = "";  // how the network shows that it expects 0 to 255: "node 'Div' divides by 255"
  size_t sample_axis = 0;     // along which its samples are
  int64_t rows = 1;           // of a sample: two where the loss compares pairs (onnx_passes/loss/pairs.h)
};

// The inputs of an entry point except states; those of the forward model come first. Throws Error if there is no such
// entry.
std::vector<InputSpec> entry_inputs(const Model& model, const EntryName& entry);
// The same for a flattened entry point.
std::vector<InputSpec> entry_inputs(const Model& model, const EntryName& entry, const Model& flat);

// The first input of the forward model, and the first that the loss added; "" when there is none.
std::string first_input(const std::vector<InputSpec>& inputs);
std::string first_label(const std::vector<InputSpec>& inputs);

inline constexpr int64_t kUsualBatch = 32;

// How many samples there are, and the batch size that the model prescribes for them.
struct SampleCount {
  int64_t samples = 0;
  int64_t fixed_batch = 0;  // 0: any is possible

  // The batch size of a training that is told none: the model's if it prescribes one, else 32, or all samples where
  // there are fewer.
  int64_t usual_batch() const { return fixed_batch > 0 ? fixed_batch : std::min(kUsualBatch, samples); }
};

class Dataset {
 public:
  // Takes the arrays named in `inputs` and ignores others. Element types are converted if that is lossless or
  // customary: integers and booleans to floats, floats to floats, integers to integers that hold every value. Float
  // inputs are transformed as `preprocess` says, but for rows that are made: these are preprocessed already. Throws
  // Error that names the array, what was expected and what was found.
  Dataset(const DataArrays& data, const std::vector<InputSpec>& inputs, const Preprocess& preprocess = {});
  Dataset(const TensorMap& arrays, const std::vector<InputSpec>& inputs, const Preprocess& preprocess = {})
      : Dataset(arrays_of(arrays), inputs, preprocess) {}

  struct Array {
    std::string name;
    Rows rows;             // as the file has them
    DType dtype;           // as the model expects it
    Shape row;             // the shape of one sample, or of the whole array; of a pair [2, ...]
    bool per_sample;       // false: passed whole to each step
    size_t axis;           // of a batch, and of stored rows: along which the samples are
    Rescaling values;      // what is done to the elements
    bool is_pair = false;  // the first axis of `row` is one with that of the batch

    // Row `index` of the file's array, in its element type and C order. `buffer` holds it, until the next call, if a
    // reader makes it or its elements are apart in the file.
    const char* row_data(int64_t index, Tensor* buffer) const;
    void copy_row(int64_t index, void* to) const;  // of an array in memory
    // The shape of `samples` of them, as the model reads it.
    Shape batch_shape(int64_t samples) const;
  };

  // The samples `rows` of this dataset, in their order, as a dataset that shares its arrays. A sample may be there
  // twice.
  Dataset select(const std::vector<int64_t>& rows) const;
  bool is_selection() const { return selected_ != nullptr; }
  // The row in the arrays that sample `sample` has.
  int64_t row_of(int64_t sample) const { return selected_ ? (*selected_)[static_cast<size_t>(sample)] : sample; }

  int64_t num_samples() const { return count_.samples; }
  const std::vector<Array>& arrays() const { return arrays_; }
  const Array* find(const std::string& name) const;  // null when there is none
  // The class of each sample, the array that classes are balanced by: the loss's first with an integer a sample; null
  // when there is none.
  const Array* classes() const { return find(classes_); }
  const SampleCount& count() const { return count_; }
  int64_t fixed_batch() const { return count_.fixed_batch; }
  int64_t usual_batch() const { return count_.usual_batch(); }
  const Preprocess& preprocess() const { return preprocess_; }
  // What the model that is trained on the data keeps of them: names of classes, categories of columns, by key.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // In the order of the rows; none: each sample once an epoch.
  const std::vector<DataPart>& parts() const { return parts_; }
  // The fingerprint of names, types, shapes and contents (fingerprint.h says how much is read), computed at the first
  // call.
  const std::string& fingerprint() const;

  // Of texts that are filled up: how many tokens of a sample are not; -1 for other data.
  int64_t filled(int64_t sample) const;
  // Whether batches may be shorter than the samples: the model takes texts of any length.
  bool shortens() const { return shortens_; }
  // Leaves the first `length` tokens of the samples of a batch that `gather` has made.
  void shorten(int64_t length, TensorMap* batch) const;

  // Fills `batch` with `count` samples, by input name; reuses tensors that already have the right shape. With a key,
  // rows that are made are augmented.
  void gather(const int64_t* samples, int64_t count, TensorMap* batch, const AugmentKey* key = nullptr) const;
  bool makes_rows() const;                // whether rows take time to make: batches are gathered ahead (gather_ahead.h)
  std::string origin(int64_t row) const;  // the file of the row; "" where it has none
  std::vector<std::string> class_names() const;  // of the labels 0, 1, ..., if the data name them
  // What is kept beside the dataset for commands that print or record it.
  std::string augment;   // as --augment takes it
  int64_t left_out = 0;  // pictures that could not be read

 private:
  std::vector<Array> arrays_;
  SampleCount count_;
  std::string classes_;
  Preprocess preprocess_;
  std::map<std::string, std::string> metadata_;
  std::vector<DataPart> parts_;
  std::shared_ptr<const std::vector<int64_t>> selected_;  // null: all rows
  bool shortens_ = false;
  mutable std::string fingerprint_;
};

// The order in which epoch `epoch` visits `n` samples: a permutation that depends only on the arguments, on every
// platform; 0, 1, ... if `shuffle` is false.
std::vector<int64_t> sample_order(int64_t n, uint64_t seed, int64_t epoch, bool shuffle);

}  // namespace onnx_train
