// Finds elements of the data that a training cannot use: floats that are NaN or infinite, or become so in the model's
// type, integers out of the range that a node accepts (rows of an embedding, classes of a loss), and numbers outside 0
// to 1 for a loss over probabilities. One pass at the speed of memory; masks are decoded. The caller owns it and must
// keep the dataset alive. Const functions may run on any thread. The constructor throws Error when flattening the model
// fails, `first_fault` of samples what making a row throws.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/dataset.h"

namespace onnx_train {

// The integers that one node accepts from an input.
struct IndexRange {
  int64_t least, most;
  bool has_other = false;
  int64_t other = 0;   // an additional value: the label that a loss ignores
  std::string reader;  // "node 'embed' (Gather)"
};

// The ranges of the integer inputs of an entry point, by input. An input is followed through nodes that keep its values
// (Cast, Reshape, ...) to Gather, GatherElements and losses. There is no range if a node reads only part of the input,
// or if the size is not known, also not by `sizes`: those of inputs, where the model leaves them open.
std::map<std::string, std::vector<IndexRange>> index_ranges(const Model& model, const EntryName& entry,
                                                            const std::map<std::string, Dims>& sizes = {});

// The classes that a loss model takes in its boxes, [batch, M, 5], where it uses them as indices.
std::optional<IndexRange> classes_of_boxes(const Model& model, const EntryName& entry, const std::string& input);

class DataCheck {
 public:
  // For the entry point of `model`.
  DataCheck(const Dataset* data, const Model& model, const EntryName& entry);

  // Describes the first fault of the data, "'labels' holds 12 in sample 17 ([17, 3]); node ... takes 0 to 9", or
  // returns "". Samples are counted from 0 in the order of the file. Of rows that are made those are looked at whose
  // reader says so (RowReader::is_checked).
  std::string first_fault() const;
  // The same for a training that has not begun, with a way out. `option` trains nevertheless, where that is possible.
  std::string refusal(const std::string& option) const;
  // The same for `count` samples of the dataset only, in that order; null: for the first `count`.
  std::string first_fault(const int64_t* samples, int64_t count) const;

 private:
  struct Fault {
    std::string text;
    const Dataset::Array* array = nullptr;
    const IndexRange* range = nullptr;  // that it is out of; null for other faults
  };
  Fault find(const int64_t* samples, int64_t count) const;
  std::string way_out(const Fault& fault) const;
  static std::string first_output(const Model& model);

  const Dataset& data_;
  std::map<std::string, std::vector<IndexRange>> ranges_;
  std::map<std::string, std::string> probabilities_;
  const std::string copied_labels_;  // label_shift.h
  const std::string output_;         // for --head
};

// "in the batch of samples 5, 17, 3 and 61 more": names the samples of a failed step.
std::string describe_samples(const int64_t* rows, int64_t count);

}  // namespace onnx_train
