// Finds in data what a training cannot use: floats that are NaN or infinite, or become so in the model's type, and
// integers that are out of the range of what reads them (the rows of an embedding, the classes of a loss). One pass at
// the speed of memory. Owned by the caller, which keeps the dataset; const methods may run on any thread; nothing is
// thrown but what flattening the model throws.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/dataset.h"

namespace onnx_train {

// The integers that one node takes of an input.
struct IndexRange {
  int64_t least, most;
  bool has_other = false;
  int64_t other = 0;   // also allowed: the label that a loss ignores
  std::string reader;  // "node 'embed' (Gather)"
};

// The ranges that hold for integer inputs of an entry point, by input. An input is followed through nodes that keep its
// values (Cast, Reshape, ...) to Gather, GatherElements and losses; where only a part of it is read, or the size is
// not known, there is no range.
std::map<std::string, std::vector<IndexRange>> index_ranges(const Model& model, const std::string& entry);

class DataCheck {
 public:
  // As the entry point of `model` reads it.
  DataCheck(const Dataset* data, const Model& model, const std::string& entry)
      : data_(*data), ranges_(index_ranges(model, entry)) {}

  // The first fault of the data, "'labels' holds 12 in sample 17 ([17, 3]); node ... takes 0 to 9", or "". Samples are
  // counted from 0, in the order of the file.
  std::string first_fault() const;
  // The same of some samples only, in the order of `rows`.
  std::string first_fault(const int64_t* rows, int64_t count) const;

 private:
  const Dataset& data_;
  std::map<std::string, std::vector<IndexRange>> ranges_;
};

// "in the batch of samples 5, 17, 3 and 61 more": where a step failed.
std::string describe_samples(const int64_t* rows, int64_t count);

}  // namespace onnx_train
