// An array whose rows are made when they are read: blocks of tokens in mapped files, pictures that are decoded. A
// reader knows its type and shape without reading. It is shared by the arrays that hold it, and does not change: any
// thread may read. Reading throws Error that names the file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// What the random changes of samples depend on, beside the sample.
struct AugmentKey {
  uint64_t seed;
  int64_t epoch;
};

class RowReader {
 public:
  virtual ~RowReader() = default;
  virtual DType dtype() const = 0;
  virtual Shape shape() const = 0;  // of the whole array; the first dimension counts the rows
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
  // The option that says which values stand for 0, 1, ...; "" if there is none.
  virtual std::string values_option() const { return ""; }
};
using RowReaders = std::map<std::string, std::shared_ptr<const RowReader>>;  // by input

// All rows in memory.
inline Tensor read_all(const RowReader& reader) {
  Tensor all(reader.dtype(), reader.shape());
  const int64_t rows = all.shape()[0];
  auto* to = static_cast<char*>(all.data());
  for (int64_t i = 0; i < rows; ++i)
    reader.read(i, nullptr, to + static_cast<size_t>(i) * (all.bytes() / static_cast<size_t>(rows)));
  return all;
}

}  // namespace onnx_train
