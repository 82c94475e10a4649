#include "runtime/data/texts/packed_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>

#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/load_element.h"
#include "onnx_passes/model/document_starts.h"
#include "runtime/data/files/tokens.h"
#include "runtime/support/fingerprint.h"

namespace onnx_train {
namespace {

// Places of a row that a document fills: those of its tokens that have a label, or all where there are no labels.
struct Document {
  size_t shard;
  int64_t begin, places;
};

// All rows, which the arrays share.
struct Samples {
  std::vector<DocumentShard> shards;
  std::vector<Document> documents;
  PackedPieces packed;
  Packing packing;
  int64_t length, padding, ignored;
  DType dtype = DType::kUndefined;  // of the tokens

  // f(document, its token at `place`, place, number of places) for the pieces of a row.
  template <typename F>
  void for_each_piece(int64_t row, const F& f) const {
    int64_t place = 0;
    const auto at = static_cast<size_t>(row);
    for (size_t i = packed.begins[at]; i < packed.begins[at + 1]; ++i) {
      const DocumentPiece& piece = packed.pieces[i];
      const Document& document = documents[static_cast<size_t>(piece.document)];
      f(document, document.begin + piece.begin, place, piece.length);
      place += piece.length;
    }
  }
  int64_t filled(int64_t row) const {
    int64_t places = 0;
    for_each_piece(row, [&](const Document&, int64_t, int64_t, int64_t count) { places += count; });
    return places;
  }

  const std::string& identity() const {
    std::call_once(identified_, [&] {
      std::vector<NamedTensor> tensors;
      for (const DocumentShard& shard : shards) {
        tensors.push_back({"tokens", shard.tokens});
        tensors.push_back({"ends", shard.ends});
        if (!shard.answers.empty()) tensors.push_back({"answers", shard.answers});
      }
      constexpr size_t kLeast = size_t{1} << 16;
      identity_ = concat(fingerprint(tensors, std::max(kSampledDataBytes / tensors.size(), kLeast)), " packed ",
                         static_cast<int>(packing), " into ", length, ", ", padding, ", ", ignored);
    });
    return identity_;
  }

 private:
  mutable std::once_flag identified_;
  mutable std::string identity_;
};

using SharedSamples = std::shared_ptr<const Samples>;

int64_t token_at(const Tensor& tokens, int64_t i) {
  return dispatch_integer(
      tokens.dtype(), [&](auto tag) { return static_cast<int64_t>(load_element<decltype(tag)>(tokens.data(), i)); });
}

class DocumentRows : public RowReader {
 public:
  DocumentRows(SharedSamples samples, DType dtype, Shape row, const char* what)
      : RowReader({dtype, with_rows(samples->packed.rows(), row)}), samples_(std::move(samples)), what_(what) {
    for (size_t axis = 0; axis < row.size(); ++axis) {
      if (axis + 2 >= row.size() && row[axis] == samples_->length) token_axes_.push_back(axis);
    }
  }

  std::string describe(int64_t row) const override {
    std::string path;
    samples_->for_each_piece(row, [&](const Document& document, int64_t, int64_t, int64_t) {
      if (path.empty()) path = samples_->shards[document.shard].path;
    });
    return path;
  }
  std::string identity() const override { return concat(samples_->identity(), " ", what_); }
  size_t memory() const override { return 0; }
  bool is_quick() const override { return true; }
  int64_t filled(int64_t row) const override { return samples_->filled(row); }
  std::vector<size_t> token_axes() const override { return token_axes_; }

 protected:
  const Samples& samples() const { return *samples_; }

 private:
  static Shape with_rows(int64_t rows, Shape row) {
    row.insert(row.begin(), rows);
    return row;
  }

  SharedSamples samples_;
  const char* what_;
  std::vector<size_t> token_axes_;
};

class DocumentTokenRows : public DocumentRows {
 public:
  explicit DocumentTokenRows(const SharedSamples& samples)
      : DocumentRows(samples, samples->dtype, {samples->length}, "tokens") {}

  void read(int64_t row, const AugmentKey* /*key*/, void* to) const override {
    dispatch_integer(spec().dtype, [&](auto tag) {
      using T = decltype(tag);
      auto* tokens = static_cast<T*>(to);
      std::fill_n(tokens, samples().length, static_cast<T>(samples().padding));
      samples().for_each_piece(row, [&](const Document& document, int64_t from, int64_t place, int64_t length) {
        const Tensor& shard = samples().shards[document.shard].tokens;
        if (shard.dtype() == spec().dtype) {
          std::memcpy(tokens + place, shard.data<char>() + static_cast<size_t>(from) * sizeof(T),
                      static_cast<size_t>(length) * sizeof(T));
          return;
        }
        for (int64_t t = 0; t < length; ++t) tokens[place + t] = static_cast<T>(token_at(shard, from + t));
      });
    });
  }
  std::string place(int64_t row, int64_t element) const override {
    std::string text;
    samples().for_each_piece(row, [&](const Document& document, int64_t from, int64_t place, int64_t length) {
      if (element < place || element >= place + length) return;
      text = concat("at token ", from + element - place, " of ", samples().shards[document.shard].path);
    });
    return text;
  }
  size_t memory() const override {
    size_t bytes = 0;
    for (const DocumentShard& shard : samples().shards)
      bytes += shard.tokens.bytes() + (shard.answers.empty() ? 0 : shard.answers.bytes());
    return bytes;
  }
};

class DocumentLabelRows : public DocumentRows {
 public:
  explicit DocumentLabelRows(const SharedSamples& samples)
      : DocumentRows(samples, DType::kInt64, {samples->length}, "labels") {}

  void read(int64_t row, const AugmentKey* /*key*/, void* to) const override {
    auto* labels = static_cast<int64_t*>(to);
    std::fill_n(labels, samples().length, samples().ignored);
    samples().for_each_piece(row, [&](const Document& document, int64_t from, int64_t place, int64_t length) {
      const DocumentShard& shard = samples().shards[document.shard];
      const uint8_t* const answers = shard.answers.empty() ? nullptr : shard.answers.data<uint8_t>();
      dispatch_integer(shard.tokens.dtype(), [&](auto tag) {
        for (int64_t t = 0; t < length; ++t) {
          const int64_t next = from + t + 1;
          if (answers && answers[next] == 0) continue;
          labels[place + t] = static_cast<int64_t>(load_element<decltype(tag)>(shard.tokens.data(), next));
        }
      });
    });
  }
};

// Integers that follow from the places of documents alone. What fills a row up is a document of its own.
class DocumentPlaceRows : public DocumentRows {
 public:
  enum class Says { kPositions, kStarts, kMask, kZeros };

  DocumentPlaceRows(const SharedSamples& samples, DType dtype, Says says, const char* what)
      : DocumentRows(samples, dtype, {samples->length}, what), says_(says) {}

  void read(int64_t row, const AugmentKey* /*key*/, void* to) const override {
    std::vector<int64_t> values(static_cast<size_t>(samples().length));
    int64_t end = 0;
    const auto fill = [&](int64_t place, int64_t length, bool is_document) {
      for (int64_t t = 0; t < length; ++t) values[static_cast<size_t>(place + t)] = value(place, t, is_document);
      end = place + length;
    };
    samples().for_each_piece(
        row, [&](const Document&, int64_t, int64_t place, int64_t length) { fill(place, length, true); });
    fill(end, samples().length - end, false);
    Tensor written = Tensor(DType::kInt64, {samples().length}, values.data(), nullptr).cast(spec().dtype);
    std::memcpy(to, written.data(), written.bytes());
  }

 private:
  int64_t value(int64_t place, int64_t t, bool is_document) const {
    switch (says_) {
      case Says::kPositions: return t;
      case Says::kStarts: return place;
      case Says::kMask: return is_document || packs(samples().packing) ? 1 : 0;
      case Says::kZeros: return 0;
    }
    return 0;
  }

  Says says_;
};

// Which tokens read which: [tokens, tokens], or [1, tokens, tokens].
class DocumentMaskRows : public DocumentRows {
 public:
  DocumentMaskRows(const SharedSamples& samples, const InputSpec& spec, bool is_added)
      : DocumentRows(samples, spec.type.dtype,
                     spec.type.rank() == 3 ? Shape{samples->length, samples->length}
                                           : Shape{1, samples->length, samples->length},
                     "mask of pairs"),
        seen_(Tensor::full(spec.type.dtype, {1}, is_added ? 0 : 1)),
        hidden_(Tensor::full(spec.type.dtype, {1}, is_added ? lowest(spec.type.dtype) : 0)) {}

  void read(int64_t row, const AugmentKey* /*key*/, void* to) const override {
    const int64_t length = samples().length;
    const size_t bytes = seen_.bytes();
    auto* mask = static_cast<char*>(to);
    for (int64_t i = 0; i < length * length; ++i)
      std::memcpy(mask + static_cast<size_t>(i) * bytes, hidden_.data(), bytes);
    int64_t end = 0;
    const auto show = [&](int64_t place, int64_t count) {
      for (int64_t q = place; q < place + count; ++q) {
        for (int64_t k = place; k <= q; ++k)
          std::memcpy(mask + static_cast<size_t>(q * length + k) * bytes, seen_.data(), bytes);
      }
      end = place + count;
    };
    samples().for_each_piece(row, [&](const Document&, int64_t, int64_t place, int64_t count) { show(place, count); });
    show(end, length - end);
  }
  bool is_quick() const override { return false; }
  bool is_checked() const override { return false; }

 private:
  static double lowest(DType dtype) {
    constexpr double kHalf = -65504;
    return dtype == DType::kFloat16 ? kHalf : static_cast<double>(std::numeric_limits<float>::lowest());
  }

  Tensor seen_, hidden_;
};

// The documents of a group that have something to learn.
void add_group(const DocumentGroup& group, bool has_labels, Samples* samples, PackedDocuments* found) {
  std::vector<int64_t> lengths;
  const size_t first = samples->documents.size();
  for (const DocumentShard& shard : group.shards) {
    const std::vector<int64_t> ends = shard.ends.to_ints();
    int64_t begin = 0;
    for (const int64_t end : ends) {
      const Document document{samples->shards.size(), begin, end - begin - (has_labels ? 1 : 0)};
      begin = end;
      if (document.places <= 0) {
        found->left_out += shard.answers.empty() ? 0 : 1;
        continue;
      }
      const int64_t kept = splits(samples->packing) ? document.places : std::min(document.places, samples->length);
      int64_t learned = has_labels ? kept : 0;
      if (has_labels && !shard.answers.empty()) {
        const uint8_t* const answers = shard.answers.data<uint8_t>() + document.begin + 1;
        learned = std::count(answers, answers + kept, uint8_t{1});
        if (learned == 0) {
          ++found->left_out;
          continue;
        }
      }
      found->learned += learned;
      samples->documents.push_back(document);
      lengths.push_back(document.places);
    }
    samples->shards.push_back(shard);
  }
  const PackedPieces packed = pack(lengths, samples->length, samples->packing);
  found->rows.push_back(packed.rows());
  found->cut += packed.cut;
  found->documents += std::ssize(lengths);
  const size_t pieces = samples->packed.pieces.size();
  for (DocumentPiece piece : packed.pieces) {
    found->tokens += piece.length;
    piece.document += static_cast<int64_t>(first);
    samples->packed.pieces.push_back(piece);
  }
  for (size_t row = 0; row + 1 < packed.begins.size(); ++row)
    samples->packed.begins.push_back(pieces + packed.begins[row + 1]);
}

// Documents of a row are told apart by a mask of pairs, or by the input that --document-mask adds.
void check_keeps_apart(const std::vector<InputSpec>& inputs, const std::string& packing) {
  const auto keeps_apart = [](const InputSpec& spec) { return spec.name == kDocumentStarts || is_mask_of_pairs(spec); };
  if (std::ranges::any_of(inputs, keeps_apart)) return;
  const auto mask = std::ranges::find_if(inputs, is_mask);
  throw UsageError(concat("--packing ", packing, ": ",
                          mask == inputs.end()
                              ? "the model takes no mask"
                              : concat("'", mask->name, "' ", to_string(mask->type), " says which tokens there are"),
                          ", so that documents of a row would read each other: build --document-mask of the forward "
                          "model keeps them apart, "
                          "--packing none gives each a row, and without --packing blocks go across documents"));
}

void check_positions_of_rows(const InputSpec& spec, const InputSpec& tokens) {
  const Dim &rows = spec.type.dims->front(), &batch = tokens.type.dims->front();
  if (!rows.known() || rows.same(batch)) return;
  throw UsageError(concat("--packing: '", spec.name, "' ", to_string(spec.type),
                          " has one row for all samples, which have other documents"));
}

}  // namespace

int64_t PackedDocuments::all_rows() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

PackedDocuments add_documents(std::vector<DocumentGroup> groups, Packing packing, int64_t padding,
                              const std::vector<InputSpec>& inputs, const ReadOptions& options, DataArrays* data) {
  const TokenInputs to = token_inputs(inputs);
  const bool has_labels = to.labels != nullptr;
  if (has_labels && !options.ignored_label && packing != Packing::kBlocks) {
    throw UsageError(concat("documents end, and rows are filled up, where '", to.labels->name,
                            "' has no label, and the loss ignores none; build it with ignore_index"));
  }
  if (packs(packing)) check_keeps_apart(inputs, options.packing);
  auto samples = std::make_shared<Samples>();
  samples->packing = packing;
  samples->length = block_of(*to.tokens, options);
  samples->padding = padding;
  samples->ignored = options.ignored_label.value_or(0);
  samples->packed.begins = {0};
  PackedDocuments found;
  for (const DocumentGroup& group : groups) add_group(group, has_labels, samples.get(), &found);
  if (samples->packed.rows() == 0) return found;
  samples->dtype = to.tokens->type.dtype;
  data->arrays[to.tokens->name] = std::make_shared<DocumentTokenRows>(samples);
  if (has_labels) data->arrays[to.labels->name] = std::make_shared<DocumentLabelRows>(samples);
  using Says = DocumentPlaceRows::Says;
  for (const InputSpec& spec : inputs) {
    const auto add = [&](Says says, const char* what) {
      if (packs(packing)) check_positions_of_rows(spec, *to.tokens);
      data->arrays[spec.name] = std::make_shared<DocumentPlaceRows>(samples, spec.type.dtype, says, what);
    };
    if (is_mask_of_pairs(spec)) {
      const bool is_added = is_float(spec.type.dtype) && !(options.is_factor && options.is_factor(spec.name));
      data->arrays[spec.name] = std::make_shared<DocumentMaskRows>(samples, spec, is_added);
      if (is_float(spec.type.dtype))
        data->notes.push_back(concat("'", spec.name, "' ", to_string(spec.type), " is taken for a mask that is ",
                                     is_added
                                         ? "added to scores: 0 for tokens that are read, the lowest number for others"
                                         : "1 for tokens that are read, 0 for others"));
    } else if (is_mask(spec)) {
      add(Says::kMask, "mask");
    } else if (is_position(spec)) {
      add(Says::kPositions, "positions");
    } else if (spec.name == kDocumentStarts) {
      add(Says::kStarts, "starts");
    } else if (is_filled(spec)) {
      add(Says::kZeros, "zeros");
    }
  }
  return found;
}

}  // namespace onnx_train
