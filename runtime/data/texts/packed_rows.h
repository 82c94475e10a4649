// Documents as the samples of a language model: a row of tokens has one or several, by --packing, and is filled up. No
// token predicts another document: a document of n tokens has n - 1 labels, and takes as many places. What the model
// takes beside its tokens keeps the documents of a row apart:
//
//   positions                begin anew in each document
//   document_starts          where the document of each token starts (onnx_passes/model/document_starts.h)
//   mask [batch, 1, T, T]    or [batch, T, T]: a token reads those of its document up to itself. Bool: true; integers:
//   1;
//                            floats that are added to scores: 0, and the lowest number for others
//   mask [batch, T]          0 where a row of one document is filled up; else ones
//
// Pure functions; any thread. They throw Error that names the file, and UsageError for a model whose documents would
// read each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/data/files/read_options.h"
#include "runtime/data/texts/packing.h"

namespace onnx_train {

struct DocumentShard {
  std::string path;
  Tensor tokens;        // one axis of integers
  Tensor ends;          // int64[documents]: ascending
  Tensor answers = {};  // uint8 for each token: 1 for those that are learned; empty: all are
};

// Shards whose documents may share rows.
struct DocumentGroup {
  std::string name;
  std::vector<DocumentShard> shards;
};

struct PackedDocuments {
  std::vector<int64_t> rows;  // of each group, in its order
  int64_t documents = 0;      // that are in them
  int64_t tokens = 0;         // places that are not filled up
  int64_t cut = 0;            // documents whose end is left out
  int64_t left_out = 0;       // documents without a token that is learned
  int64_t learned = 0;        // labels

  int64_t all_rows() const;
};

// Adds the arrays of `inputs` to `data`, with notes. `padding` fills rows up.
PackedDocuments add_documents(std::vector<DocumentGroup> groups, Packing packing, int64_t padding,
                              const std::vector<InputSpec>& inputs, const ReadOptions& options, DataArrays* data);

}  // namespace onnx_train
