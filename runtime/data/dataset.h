// Training data: named arrays whose rows are samples, checked against a model's inputs, and the batches cut from them.
//
// The sample key is the first input that the loss added ("labels"), or the model's first input if the loss added none;
// its first dimension is the number of samples. An array with the same first dimension is cut into batches; any other
// array is passed whole to each step; scalars alone are one sample. Arrays may be views of mapped files; only the rows
// of a batch are copied. Rows may also be made when a batch needs them (RowReader), such as pictures, which are
// decoded. The caller owns the dataset. Any thread may gather batches; all else is for one thread at a time.
#pragma once

#include <algorithm>
#include <memory>
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

// What the random changes of samples depend on, beside the sample.
struct AugmentKey {
  uint64_t seed;
  int64_t epoch;
};

// An array whose rows are made when they are read. Any thread may read them.
class RowReader {
 public:
  virtual ~RowReader() = default;
  virtual DType dtype() const = 0;
  virtual Shape shape() const = 0;  // of the whole array
  // Writes the row in C order. With a key it is changed at random, as the augmentation says: in the same way for the
  // same key and row. Throws Error.
  virtual void read(int64_t row, const AugmentKey* key, void* to) const = 0;
  virtual std::string describe(int64_t row) const = 0;  // the file that it comes from; "" if there is none
  virtual std::string identity() const = 0;             // text that differs for other data: names and sizes of files
  virtual size_t memory() const = 0;                    // bytes that it keeps at most
};
using RowReaders = std::map<std::string, std::shared_ptr<const RowReader>>;  // by input

inline constexpr int64_t kUsualBatch = 32;

class Dataset {
 public:
  // Takes the arrays named in `inputs` and ignores others. Element types are converted if that is lossless or
  // customary: integers and booleans to floats, floats to floats, integers to integers that hold every value. Float
  // inputs are transformed as `preprocess` says. Throws Error that names the array, what was expected and what was
  // found.
  // What `readers` give is preprocessed already.
  Dataset(const TensorMap& arrays, const std::vector<InputSpec>& inputs, const Preprocess& preprocess = {},
          const RowReaders& readers = {});

  struct Array {
    std::string name;
    Tensor data;                            // as stored in the file; of rows that are made, only the type and the shape
    DType dtype;                            // as the model expects it
    Shape row;                              // the shape of one sample, or of the whole array
    bool per_sample;                        // false: passed whole to each step
    Rescaling values;                       // what is done to the elements
    std::shared_ptr<const RowReader> rows;  // null where they are stored

    size_t memory() const { return rows ? rows->memory() : data.bytes(); }
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
  // With a key, rows that are made are augmented.
  void gather(const int64_t* rows, int64_t count, TensorMap* batch, const AugmentKey* key = nullptr) const;
  bool makes_rows() const;                // whether there is a RowReader: batches are gathered ahead (gather_ahead.h)
  std::string origin(int64_t row) const;  // the file of the sample; "" where it has none
  // What is kept beside the dataset for commands that print or record it.
  std::string augment;               // as --augment takes it
  std::vector<std::string> classes;  // the names of the labels 0, 1, ..., if they have names

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
