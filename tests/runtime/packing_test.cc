#include "runtime/data/texts/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/model/document_starts.h"
#include "runtime/data/loading/batch_source.h"
#include "runtime/data/loading/source.h"
#include "runtime/data/loading/text_stream.h"
#include "runtime/data/selection.h"
#include "tests/support/error_of.h"
#include "tests/support/small_decoder.h"

namespace onnx_train::packing_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Rows as the lengths of their pieces.
std::vector<std::vector<int64_t>> rows_of(const PackedPieces& packed) {
  std::vector<std::vector<int64_t>> rows;
  for (size_t row = 0; row + 1 < packed.begins.size(); ++row) {
    rows.emplace_back();
    for (size_t i = packed.begins[row]; i < packed.begins[row + 1]; ++i) rows.back().push_back(packed.pieces[i].length);
  }
  return rows;
}

using Rows = std::vector<std::vector<int64_t>>;

TEST(Packing, ADocumentGoesIntoTheFullestRowThatItFits) {
  EXPECT_EQ(rows_of(pack({3, 6, 2, 5, 0, 4}, 10, Packing::kBestFit)), (Rows{{6, 4}, {3, 2, 5}}));
  EXPECT_EQ(rows_of(pack({3, 6, 2}, 10, Packing::kNone)), (Rows{{3}, {6}, {2}}));
  EXPECT_EQ(rows_of(pack({3, 6, 2}, 4, Packing::kWrapped)), (Rows{{3, 1}, {4}, {1, 2}}));
}

TEST(Packing, LongDocumentsAreCutOrSplit) {
  const PackedPieces cut = pack({7, 2}, 3, Packing::kBestFit);
  EXPECT_EQ(rows_of(cut), (Rows{{3}, {2}}));
  EXPECT_EQ(cut.cut, 1);
  EXPECT_EQ(cut.left_out, 4);
  const PackedPieces split = pack({7, 2}, 3, Packing::kBestFitSplit);
  EXPECT_EQ(rows_of(split), (Rows{{3}, {3}, {1, 2}}));
  EXPECT_EQ(split.cut, 0);
  EXPECT_EQ(split.pieces[2].begin, 6);
}

TEST(Packing, OfManyDocumentsNoneIsLostAndNoRowIsTooLong) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 2000; ++i) lengths.push_back(i * 7919 % 150);
  const int64_t all = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  for (const Packing packing : {Packing::kBestFitSplit, Packing::kWrapped}) {
    const PackedPieces packed = pack(lengths, 64, packing);
    int64_t places = 0;
    for (const auto& row : rows_of(packed)) {
      const int64_t filled = std::accumulate(row.begin(), row.end(), int64_t{0});
      EXPECT_LE(filled, 64);
      places += filled;
    }
    EXPECT_EQ(places, all);
    EXPECT_LE(packed.rows(), all / 64 + 1 + all / 640);
  }
  EXPECT_THAT(error_of([] { parse_packing("bdf"); }), HasSubstr("--packing is 'bdf'; there are none, bfd"));
}

std::string write(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::vector<InputSpec> inputs_with(const std::vector<InputSpec>& more) {
  const TensorType tokens = {DType::kInt64, Dims{"batch", "length"}};
  std::vector<InputSpec> inputs = {{"input_ids", tokens}, {"position_ids", tokens}};
  inputs.insert(inputs.end(), more.begin(), more.end());
  inputs.push_back({"labels", tokens, /*from_loss=*/true});
  return inputs;
}

InputSpec of_tokens(const char* name) {
  InputSpec spec;
  spec.name = name;
  spec.type = {DType::kInt64, Dims{"batch", "length"}};
  return spec;
}

ReadOptions packed_into(int64_t block, const std::string& packing) {
  ReadOptions options;
  options.block_size = block;
  options.packing = packing;
  options.ignored_label = -100;
  return options;
}

Dataset load(const std::string& path, const std::vector<InputSpec>& inputs, const ReadOptions& options,
             DataNotes* notes = nullptr) {
  return load_dataset(path, inputs, DataRole::kTrain, {}, options, notes);
}

std::vector<int64_t> row(const Dataset& data, const std::string& name, int64_t sample) {
  TensorMap batch;
  data.gather(&sample, 1, &batch);
  return batch.at(name).cast(DType::kInt64).to_ints();
}

std::string three_documents() {
  return write("three.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"defgh\"}\n\n{\"text\": \"ij\"}\n");
}

TEST(Packing, DocumentsOfARowBeginAnewAndPredictNoOther) {
  // A byte 0 ends the first two; a document of n tokens has n - 1 labels.
  const Dataset data = load(three_documents(), inputs_with({of_tokens(kDocumentStarts), of_tokens("attention_mask")}),
                            packed_into(6, "bfd"));
  ASSERT_EQ(data.num_samples(), 2);
  EXPECT_THAT(row(data, "input_ids", 0), ElementsAre('d', 'e', 'f', 'g', 'h', 'i'));
  EXPECT_THAT(row(data, "labels", 0), ElementsAre('e', 'f', 'g', 'h', 0, 'j'));
  EXPECT_THAT(row(data, "position_ids", 0), ElementsAre(0, 1, 2, 3, 4, 0));
  EXPECT_THAT(row(data, kDocumentStarts, 0), ElementsAre(0, 0, 0, 0, 0, 5));
  EXPECT_THAT(row(data, "input_ids", 1), ElementsAre('a', 'b', 'c', 0, 0, 0));
  EXPECT_THAT(row(data, "labels", 1), ElementsAre('b', 'c', 0, -100, -100, -100));
  EXPECT_THAT(row(data, "position_ids", 1), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(row(data, kDocumentStarts, 1), ElementsAre(0, 0, 0, 3, 3, 3));
  EXPECT_THAT(row(data, "attention_mask", 1), ElementsAre(1, 1, 1, 1, 1, 1));

  const Dataset alone = load(three_documents(), inputs_with({of_tokens("attention_mask")}), packed_into(4, "none"));
  ASSERT_EQ(alone.num_samples(), 3);
  EXPECT_THAT(row(alone, "labels", 1), ElementsAre('e', 'f', 'g', 'h'));
  EXPECT_THAT(row(alone, "attention_mask", 2), ElementsAre(1, 0, 0, 0));
}

TEST(Packing, AMaskOfPairsIsBlockDiagonalAndCausal) {
  const auto masked = [](DType dtype, const Dims& dims) {
    const InputSpec mask = {"attention_mask", {dtype, dims}};
    return load(three_documents(), inputs_with({mask}), packed_into(6, "bfd"));
  };
  const Dataset flags = masked(DType::kBool, {"batch", 1, "length", "length"});
  const std::vector<int64_t> seen = row(flags, "attention_mask", 0);
  for (int64_t q = 0; q < 6; ++q) {
    for (int64_t k = 0; k < 6; ++k) EXPECT_EQ(seen[static_cast<size_t>(q * 6 + k)], k <= q && (q < 5) == (k < 5));
  }
  const Dataset added = masked(DType::kFloat, {"batch", "length", "length"});
  TensorMap batch;
  const int64_t first = 0;
  added.gather(&first, 1, &batch);
  EXPECT_EQ(batch.at("attention_mask").shape(), (Shape{1, 6, 6}));
  EXPECT_EQ(batch.at("attention_mask").at(0), 0);
  EXPECT_LT(batch.at("attention_mask").at(1), -3e38);
}

TEST(Packing, AModelThatCannotTellDocumentsApartIsRefused) {
  const auto error = [](const std::string& path, const std::vector<InputSpec>& inputs, const ReadOptions& options) {
    return error_of([&] { load(path, inputs, options); });
  };
  EXPECT_THAT(error(three_documents(), inputs_with({of_tokens("attention_mask")}), packed_into(6, "wrapped")),
              HasSubstr("'attention_mask' int64[batch,length] says which tokens there are, so that documents of a row "
                        "would read each other: build --document-mask"));
  const std::string tokens = write("documents.bin", std::string("a\0b\0\2\0c\0d\0e\0\2\0f\0", 16));
  EXPECT_THAT(error(tokens, inputs_with({of_tokens(kDocumentStarts)}), packed_into(4, "bfd")),
              HasSubstr("documents.bin does not say where its documents end: --document-end"));
  ReadOptions options = packed_into(4, "bfd");
  options.document_end = 2;
  const Dataset data = load(tokens, inputs_with({of_tokens(kDocumentStarts)}), options);
  ASSERT_EQ(data.num_samples(), 2);
  EXPECT_THAT(row(data, "labels", 0), ElementsAre('d', 'e', 2, -100));
  EXPECT_THAT(row(data, "labels", 1), ElementsAre('b', 2, -100, -100));
  options.ignored_label.reset();
  EXPECT_THAT(error(tokens, inputs_with({of_tokens(kDocumentStarts)}), options), HasSubstr("the loss ignores none"));
}

TEST(Packing, SourcesWithWeightsShareNoRow) {
  const std::string a = write("a_source.jsonl", "{\"text\": \"abc\"}\n"),
                    b = write("b_source.jsonl", "{\"text\": \"de\"}\n");
  const std::vector<InputSpec> inputs = inputs_with({of_tokens(kDocumentStarts)});
  EXPECT_EQ(load(concat(a, ",", b), inputs, packed_into(8, "bfd")).num_samples(), 1);
  DataNotes notes;
  const Dataset data = load(concat(a, ":0.5,", b, ":0.5"), inputs, packed_into(8, "bfd"), &notes);
  EXPECT_EQ(data.num_samples(), 2);
  ASSERT_EQ(data.parts().size(), 2);
  EXPECT_THAT(notes, testing::Contains(HasSubstr("a_source.jsonl: 50% of an epoch, each of its 1 sample 1 times")));
}

// 200 documents of 2 to 33 tokens.
Dataset documents_of_many_lengths() {
  std::string lines;
  for (int i = 0; i < 200; ++i)
    lines += "{\"text\": \"" + std::string(static_cast<size_t>(1 + i * 7 % 32), 'x') + "\"}\n";
  return load(write("lengths.jsonl", lines), inputs_with({}), packed_into(32, "none"));
}

TEST(Packing, BatchesByLengthHoldEachSampleOnceAndAreShort) {
  const Dataset data = documents_of_many_lengths();
  const std::vector<int64_t> order = sample_order(data.num_samples(), 3, 0, true);
  const std::vector<int64_t> grouped = length_order(data, order, 4, 3, 0);
  std::vector<int64_t> sorted = grouped;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> all(static_cast<size_t>(data.num_samples()));
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(sorted, all);
  EXPECT_NE(grouped, length_order(data, sample_order(data.num_samples(), 3, 1, true), 4, 3, 1));
  const auto places = [&](const std::vector<int64_t>& samples) {
    int64_t sum = 0;
    for (size_t i = 0; i + 4 <= samples.size(); i += 4) {
      int64_t longest = 0;
      for (size_t k = i; k < i + 4; ++k) longest = std::max(longest, data.filled(samples[k]));
      sum += 4 * longest;
    }
    return sum;
  };
  EXPECT_LT(places(grouped), places(order) * 3 / 4);
}

TEST(Packing, ABatchIsAsLongAsItsLongestSample) {
  const Dataset data = documents_of_many_lengths();
  EXPECT_TRUE(data.shortens());
  GatherAhead batches(&data, /*shortens=*/true);
  const std::vector<int64_t> rows = {0, 1};  // 1 and 8 places, rounded up to a multiple of 2
  batches.start([rows, given = false]() mutable { return std::exchange(given, true) ? std::vector<int64_t>() : rows; },
                std::nullopt);
  TensorMap batch, whole;
  ASSERT_EQ(batches.next(&batch), 2);
  data.gather(rows.data(), 2, &whole);
  EXPECT_EQ(batch.at("input_ids").shape(), (Shape{2, 8}));
  for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(batch.at("labels").at(i), whole.at("labels").at(i / 8 * 32 + i % 8)) << i;
}

// The tokens of the batches that a rank gets of an epoch, after `skip` samples.
std::vector<std::vector<int64_t>> streamed(const TextStream& stream, const Rounds& rounds, int64_t epoch,
                                           int64_t skip) {
  const std::unique_ptr<BatchSource> batches = stream.batches(2, /*seed=*/5, /*shuffle=*/true, /*drop_last=*/false);
  batches->share_out(rounds);
  batches->start(epoch, skip);
  std::vector<std::vector<int64_t>> all;
  for (TensorMap batch; !batches->next_round(&batch).empty();)
    all.push_back(batch.at("tokens").cast(DType::kInt64).to_ints());
  return all;
}

TEST(TextStream, ShardsAreReadInWindowsAlikeForRanksAndAfterAResume) {
  Model model = from_text(small_decoder(kCausal));
  infer_types(model.graph.get());
  std::vector<std::string> paths;
  for (int shard = 0; shard < 2; ++shard) {
    std::string bytes;
    for (int i = 0; i < 60 + shard; ++i) bytes += {static_cast<char>(i % 7), '\0'};
    paths.push_back(write("shard" + std::to_string(shard) + ".bin", bytes));
  }
  ReadOptions options;
  options.block_size = 4;
  const TextStream stream(paths, model, Entry::kPredict, options, /*window=*/6);
  EXPECT_EQ(stream.first().num_samples(), 7);  // of 30 tokens, which are more than 6 blocks
  const auto whole = streamed(stream, {}, 0, 0);
  EXPECT_EQ(whole.size(), 15);  // 121 tokens are 30 blocks, across shards
  EXPECT_EQ(whole, streamed(stream, {}, 0, 0));
  EXPECT_NE(whole, streamed(stream, {}, 1, 0));
  const auto rest = streamed(stream, {}, 0, 6);
  EXPECT_EQ(rest, std::vector(whole.begin() + 3, whole.end()));
  const auto first = streamed(stream, {.rank = 0, .ranks = 2, .per_step = 2}, 0, 0),
             second = streamed(stream, {.rank = 1, .ranks = 2, .per_step = 2}, 0, 0);
  for (size_t i = 0; i + 1 < whole.size(); i += 2) {
    EXPECT_EQ(first[i / 2], whole[i]);
    EXPECT_EQ(second[i / 2], whole[i + 1]);
  }
  std::vector<int64_t> tokens;
  for (const auto& batch : whole) tokens.insert(tokens.end(), batch.begin(), batch.end());
  EXPECT_EQ(tokens.size(), 120);
}

}  // namespace
}  // namespace onnx_train::packing_test
