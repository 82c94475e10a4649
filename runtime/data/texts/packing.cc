#include "runtime/data/texts/packing.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "runtime/support/options.h"

namespace onnx_train {
namespace {

constexpr std::pair<const char*, Packing> kPackings[] = {{"", Packing::kBlocks},
                                                         {"none", Packing::kNone},
                                                         {"bfd", Packing::kBestFit},
                                                         {"bfd_split", Packing::kBestFitSplit},
                                                         {"wrapped", Packing::kWrapped}};

// The pieces of documents, none longer than a row.
std::vector<DocumentPiece> pieces_of(const std::vector<int64_t>& lengths, int64_t row, bool splits,
                                     PackedPieces* packed) {
  std::vector<DocumentPiece> pieces;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t length = lengths[i], kept = splits ? length : std::min(length, row);
    for (int64_t begin = 0; begin < kept; begin += row)
      pieces.push_back({static_cast<int64_t>(i), begin, std::min(row, kept - begin)});
    packed->cut += kept < length ? 1 : 0;
    packed->left_out += length - kept;
  }
  return pieces;
}

// Best-fit decreasing: the row of each piece, in the order of the pieces.
std::vector<size_t> best_rows(const std::vector<DocumentPiece>& pieces, int64_t row, size_t* rows) {
  std::vector<size_t> order(pieces.size()), row_of(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return pieces[a].length > pieces[b].length; });
  std::map<int64_t, std::vector<size_t>> by_place;  // rows by the number of tokens that they have place for
  for (const size_t piece : order) {
    const int64_t length = pieces[piece].length;
    const auto fullest = by_place.lower_bound(length);
    int64_t place = row;
    if (fullest == by_place.end()) {
      row_of[piece] = (*rows)++;
    } else {
      place = fullest->first;
      row_of[piece] = fullest->second.back();
      fullest->second.pop_back();
      if (fullest->second.empty()) by_place.erase(fullest);
    }
    if (place > length) by_place[place - length].push_back(row_of[piece]);
  }
  return row_of;
}

// Pieces by their rows, in which they keep their order.
void put_into_rows(const std::vector<DocumentPiece>& pieces, const std::vector<size_t>& row_of, size_t rows,
                   PackedPieces* packed) {
  packed->begins.assign(rows + 1, 0);
  for (const size_t row : row_of) ++packed->begins[row + 1];
  std::partial_sum(packed->begins.begin(), packed->begins.end(), packed->begins.begin());
  std::vector<size_t> next = packed->begins;
  packed->pieces.resize(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) packed->pieces[next[row_of[i]]++] = pieces[i];
}

PackedPieces wrapped(const std::vector<int64_t>& lengths, int64_t row) {
  PackedPieces packed;
  int64_t place = 0;  // in the last row
  for (size_t i = 0; i < lengths.size(); ++i) {
    for (int64_t begin = 0; begin < lengths[i];) {
      if (place == 0) {
        packed.begins.push_back(packed.pieces.size());
        place = row;
      }
      const int64_t length = std::min(place, lengths[i] - begin);
      packed.pieces.push_back({static_cast<int64_t>(i), begin, length});
      begin += length;
      place -= length;
    }
  }
  packed.begins.push_back(packed.pieces.size());
  return packed;
}

}  // namespace

bool splits(Packing packing) { return packing != Packing::kNone && packing != Packing::kBestFit; }

Packing parse_packing(const std::string& text) {
  std::string known;
  for (const auto& [name, packing] : kPackings) {
    if (text == name) return packing;
    known += concat(known.empty() || !*name ? "" : ", ", name);
  }
  throw UsageError(concat("--packing is '", text, "'; there are ", known));
}

PackedPieces pack(const std::vector<int64_t>& lengths, int64_t row, Packing packing) {
  if (packing == Packing::kWrapped) return wrapped(lengths, row);
  PackedPieces packed;
  const std::vector<DocumentPiece> pieces = pieces_of(lengths, row, splits(packing), &packed);
  size_t rows = packs(packing) ? 0 : pieces.size();
  std::vector<size_t> row_of(pieces.size());
  if (!packs(packing)) {
    std::iota(row_of.begin(), row_of.end(), size_t{0});
  } else {
    row_of = best_rows(pieces, row, &rows);
  }
  put_into_rows(pieces, row_of, rows, &packed);
  return packed;
}

}  // namespace onnx_train
