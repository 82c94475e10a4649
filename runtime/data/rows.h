// The rows of one array of data: stored in a tensor, or made when they are read, such as blocks of tokens in mapped
// files and pictures that are decoded. A reader knows its type and shape without reading. It is shared by the arrays
// that hold it, and does not change: any thread may read. Reading throws Error that names the file.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "onnx_passes/ir/internal_error.h"
#include "onnx_passes/ir/tensor.h"
#include "onnx_passes/ir/tensor_spec.h"

namespace onnx_train {

// What the random changes of samples depend on, beside the sample.
struct AugmentKey {
  uint64_t seed;
  int64_t epoch;
};

class RowReader {
 public:
  explicit RowReader(TensorSpec spec) : spec_(std::move(spec)) {}
  virtual ~RowReader() = default;
  const TensorSpec& spec() const { return spec_; }  // of the whole array; the first dimension counts the rows
  // Writes the row in C order to `to`, which is aligned to its elements. With a key it is changed at random, if the
  // reader does that: in the same way for the same key and row.
  virtual void read(int64_t row, const AugmentKey* key, void* to) const = 0;
  virtual std::string describe(int64_t row) const = 0;  // the file that it comes from; "" if there is none
  // Where element `element` of the row stands in its file, of tokens: "at position 1500 of a.bin"; "" for others.
  virtual std::string place(int64_t /*row*/, int64_t /*element*/) const { return ""; }
  virtual std::string identity() const = 0;  // text that differs for other data, within the bounds of fingerprint.h
  virtual size_t memory() const = 0;         // bytes of memory or of mapped files that it keeps at most
  // Whether a row costs about as much as a copy: none are read ahead.
  virtual bool is_quick() const = 0;
  // Whether all rows are checked before the first step.
  virtual bool is_checked() const { return is_quick(); }
  // Of rows of tokens that may be filled up: how many places of the row are not; -1 for others.
  virtual int64_t filled(int64_t /*row*/) const { return -1; }
  // The axes of such a row that count tokens.
  virtual std::vector<size_t> token_axes() const { return {}; }
  // The option that says which values stand for 0, 1, ...; "" if there is none.
  virtual std::string values_option() const { return ""; }

 private:
  const TensorSpec spec_;
};

// The rows of one array. A copy shares them.
class Rows {
 public:
  Rows() = default;
  Rows(Tensor stored) : stored_(std::move(stored)) {}
  template <std::derived_from<RowReader> Reader>
  Rows(std::shared_ptr<Reader> reader) : reader_(std::move(reader)) {}
  // An array of a file that is read when an input takes it.
  static Rows in_file(std::function<Tensor()> read) {
    Rows rows;
    rows.read_ = std::move(read);
    return rows;
  }

  // The same, read from its file where it is still there. All below but read_all() are for rows that are loaded.
  Rows loaded() const { return read_ ? Rows(read_()) : *this; }

  const RowReader* reader() const { return reader_.get(); }  // null where the rows are stored
  const Tensor& stored() const {                             // of rows that are made: empty
    if (read_) throw InternalError("rows that are still in their file");
    return stored_;
  }
  TensorSpec spec() const { return reader_ ? reader_->spec() : TensorSpec{stored().dtype(), stored().shape()}; }
  DType dtype() const { return reader_ ? reader_->spec().dtype : stored().dtype(); }
  size_t memory() const { return reader_ ? reader_->memory() : stored().bytes(); }
  bool is_quick() const { return !reader_ || reader_->is_quick(); }
  // All rows in memory.
  Tensor read_all() const {
    if (!reader_) return loaded().stored_;
    Tensor all(reader_->spec().dtype, reader_->spec().shape);
    const int64_t rows = all.shape()[0];
    auto* to = static_cast<char*>(all.data());
    for (int64_t i = 0; i < rows; ++i)
      reader_->read(i, nullptr, to + static_cast<size_t>(i) * (all.bytes() / static_cast<size_t>(rows)));
    return all;
  }

 private:
  Tensor stored_;
  std::shared_ptr<const RowReader> reader_;
  std::function<Tensor()> read_;
};

}  // namespace onnx_train
