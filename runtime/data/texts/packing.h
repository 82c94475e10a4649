// Which parts of which documents fill the samples of a language model, rows of a fixed number of tokens: --packing. A
// plan depends on the lengths of the documents alone. Pure functions; any thread.
//
//   ""         blocks of the documents, whose labels are the tokens that follow
//   none       a document is a row; of a longer one the end is left out
//   bfd        best-fit decreasing: the longest documents first, each into the fullest row that it fits. The end of one
//              that is longer than a row is left out
//   bfd_split  the same of the pieces of longer documents, each as long as a row but the last
//   wrapped    one after the other, in their order; what a row has no place for begins the next one
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onnx_train {

enum class Packing { kBlocks, kNone, kBestFit, kBestFitSplit, kWrapped };

// Throws UsageError for another word.
Packing parse_packing(const std::string& text);
// Whether longer documents go on in another row.
bool splits(Packing packing);
// Whether a row may have several documents.
inline bool packs(Packing packing) { return packing != Packing::kNone && packing != Packing::kBlocks; }
inline bool packs(const std::string& packing) { return !packing.empty() && packs(parse_packing(packing)); }

// Tokens of one document, which do not read those of other pieces.
struct DocumentPiece {
  int64_t document, begin, length;  // `begin` counts from the document's first token
};

struct PackedPieces {
  std::vector<DocumentPiece> pieces;  // those of a row after each other
  std::vector<size_t> begins;         // of each row, and the end of the last one
  int64_t cut = 0;                    // documents whose end is left out
  int64_t left_out = 0;               // their tokens there

  int64_t rows() const { return static_cast<int64_t>(begins.size()) - 1; }
};

// `lengths`: of the documents; those of length 0 are left out. Rows have `row` tokens at most, which is above 0.
PackedPieces pack(const std::vector<int64_t>& lengths, int64_t row, Packing packing);

}  // namespace onnx_train
