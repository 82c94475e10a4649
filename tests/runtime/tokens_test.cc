#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "runtime/data/files/npy.h"
#include "runtime/data/loading/batch_source.h"
#include "runtime/data/loading/source.h"
#include "runtime/data/selection.h"
#include "tests/support/error_of.h"

namespace onnx_train::tokens_test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<InputSpec> kOpen = {
    {"tokens", {DType::kInt64, Dims{"batch", "length"}}},
    {"labels", {DType::kInt64, Dims{"batch", "length"}}, /*from_loss=*/true},
};
const std::vector<InputSpec> kFixed = {
    {"input_ids", {DType::kInt64, Dims{"batch", 4}}},
    {"attention_mask", {DType::kInt64, Dims{"batch", 4}}},
    {"position_ids", {DType::kInt64, Dims{"batch", 4}}},
    {"labels", {DType::kInt64, Dims{"batch", 4}}, /*from_loss=*/true},
};

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
std::vector<T> counting(T first, size_t count) {
  std::vector<T> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

std::string with_header(int32_t magic, int32_t version, int32_t count, const std::string& tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return bytes_of(header) + tokens;
}

std::string write(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

ReadOptions blocks_of(int64_t size) {
  ReadOptions options;
  options.block_size = size;
  return options;
}

Dataset load(const std::string& path, const std::vector<InputSpec>& inputs, const ReadOptions& options = {}) {
  return load_dataset(path, inputs, options.role.value_or(DataRole::kTrain), {}, options);
}

std::vector<int64_t> row(const Dataset& data, const std::string& name, int64_t sample) {
  TensorMap batch;
  data.gather(&sample, 1, &batch);
  return batch.at(name).to_ints();
}

const std::vector<InputSpec> kClassifier = {
    {"input_ids", {DType::kInt64, Dims{"batch", 4}}},
    {"attention_mask", {DType::kInt64, Dims{"batch", 4}}},
    {"labels", {DType::kInt64, Dims{"batch"}}, /*from_loss=*/true},
};

TEST(Tokens, TextsWithLabelsAreCutOrFilledAndTheMaskSaysWhere) {
  const std::string csv = write("texts.csv", "id,text,label\n1,\"a,b\",good\n2,abcdef,bad\n3,,good\n");
  const std::string json = write("texts.jsonl",
                                 "{\"text\": \"a,b\", \"label\": \"good\"}\n\n"
                                 "{\"label\": \"bad\", \"text\": \"abcdef\", \"more\": [1]}\n"
                                 "{\"text\": \"\", \"label\": \"good\"}\n");
  for (const std::string& path : {csv, json}) {
    const Dataset data = load(path, kClassifier);
    EXPECT_EQ(data.num_samples(), 3);
    EXPECT_THAT(row(data, "input_ids", 0), ElementsAre('a', ',', 'b', 0));
    EXPECT_THAT(row(data, "attention_mask", 0), ElementsAre(1, 1, 1, 0));
    EXPECT_THAT(row(data, "input_ids", 1), ElementsAre('a', 'b', 'c', 'd'));
    EXPECT_THAT(row(data, "attention_mask", 2), ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(data.class_names(), ElementsAre("bad", "good"));
    EXPECT_THAT(row(data, "labels", 0), ElementsAre(1));
    EXPECT_THAT(row(data, "labels", 1), ElementsAre(0));

    // A prediction reads the same column, and needs no labels.
    ReadOptions trained;
    trained.metadata = data.metadata();
    EXPECT_THAT(row(load(path, {kClassifier[0]}, trained), "input_ids", 2), ElementsAre(0, 0, 0, 0));
  }
}

TEST(Tokens, TextsWithLabelsAreTables) {
  ReadOptions options;
  options.missing = "drop";
  options.map = {"review=input_ids", "stars=labels"};
  const std::string path = write("reviews.csv", "stars,review\n4,one\n,two\n0,three\n");
  const Dataset data = load(path, kClassifier, options);
  EXPECT_EQ(data.num_samples(), 2);
  EXPECT_THAT(row(data, "input_ids", 1), ElementsAre('t', 'h', 'r', 'e'));
  EXPECT_THAT(row(data, "labels", 1), ElementsAre(0));
  options.missing.clear();
  EXPECT_THAT(error_of([&] { load(path, kClassifier, options); }), HasSubstr("reviews.csv, line 3, column 'stars'"));
  const auto error = [](const std::string& lines) {
    return error_of([&] { load(write("wrong.jsonl", lines), kClassifier); });
  };
  EXPECT_THAT(error("{\"text\": \"a\", \"label\": 0}\n{\"text\": [1]}\n"),
              HasSubstr("wrong.jsonl, line 2: 'text' is neither a text nor a number"));
  EXPECT_THAT(error("{\"text\": \"a\"\n"), HasSubstr("wrong.jsonl, line 1 is no JSON object"));
  EXPECT_THAT(error("{\"words\": \"a\"}\n"), HasSubstr("has no \"text\" in its first line; --map NAME=input_ids"));
  EXPECT_THAT(error("{\"text\": \"a\"}\n"), HasSubstr("has no 'labels'"));
  ReadOptions of_words;
  of_words.vocabulary = [](const std::string&) { return int64_t{30522}; };
  EXPECT_THAT(error_of([&] {
                load(path, kClassifier, [&] {
                  of_words.map = {"review=input_ids", "stars=labels"};
                  return of_words;
                }());
              }),
              HasSubstr("--tokenizer names"));
}

TEST(Tokens, BlocksFollowEachOtherAndLabelsAreTheNextTokens) {
  const std::string path = write("nano/train.bin", bytes_of(counting<uint16_t>(300, 14)));
  const Dataset data = load(path, kOpen, blocks_of(4));
  EXPECT_EQ(data.num_samples(), 3);
  EXPECT_THAT(row(data, "tokens", 2), ElementsAre(308, 309, 310, 311));
  EXPECT_THAT(row(data, "labels", 2), ElementsAre(309, 310, 311, 312));
  // 13 tokens: the last block has its last label. 12: it has not.
  EXPECT_EQ(load(write("13.bin", bytes_of(counting<uint16_t>(300, 13))), kOpen, blocks_of(4)).num_samples(), 3);
  EXPECT_EQ(load(write("12.bin", bytes_of(counting<uint16_t>(300, 12))), kOpen, blocks_of(4)).num_samples(), 2);
  EXPECT_EQ(load(path, {kOpen[0]}, blocks_of(7)).num_samples(), 2);  // a prediction needs no labels
}

TEST(Tokens, HeadersOfLlmCAreRead) {
  const auto narrow = counting<uint16_t>(0, 9);
  const auto wide = counting<uint32_t>(100000, 9);
  const std::string gpt2 = write("gpt2.bin", with_header(20240520, 1, 9, bytes_of(narrow)));
  const std::string llama = write("llama.bin", with_header(20240801, 7, 9, bytes_of(wide)));
  EXPECT_THAT(row(load(gpt2, kFixed), "input_ids", 1), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(row(load(llama, kFixed), "labels", 1), ElementsAre(100005, 100006, 100007, 100008));
  const auto refused = [](const std::string& bytes) {
    return error_of([&] { load(write("bad.bin", bytes), kFixed); });
  };
  EXPECT_THAT(refused(with_header(20240520, 1, 10, bytes_of(narrow))), HasSubstr("its header counts 10 tokens"));
  EXPECT_THAT(refused(with_header(20240520, 1, -1, bytes_of(narrow))), HasSubstr("damaged or cut off"));
  EXPECT_THAT(refused(with_header(20240520, 2, 9, bytes_of(narrow))), HasSubstr("version 2; version 1 is read"));
  EXPECT_THAT(refused(with_header(20240522, 1, 9, bytes_of(narrow))), HasSubstr("multiple-choice"));
}

TEST(Tokens, FilesWithoutAHeaderAreReadAsWhatTheyLookLikeAndItIsSaid) {
  const auto opened = [](const std::string& path, const ReadOptions& options) {
    return open_data(path, kOpen, options);
  };
  const std::string wide = write("wide.bin", bytes_of(counting<uint32_t>(70000, 9)));
  const auto source = opened(wide, blocks_of(4));
  EXPECT_EQ(source.find("tokens")->dtype(), DType::kUint32);
  EXPECT_THAT(source.notes.at(0), HasSubstr("has no header and is read as uint32 tokens; --token-type uint16"));
  EXPECT_THAT(source.summary, HasSubstr("9 tokens, 2 blocks of 4"));
  ReadOptions narrow = blocks_of(4);
  narrow.token_type = "uint16";
  EXPECT_EQ(opened(wide, narrow).find("tokens")->spec().shape, (Shape{4, 4}));
  EXPECT_TRUE(opened(wide, narrow).notes.empty());
  // Few tokens, such as the four of DNA: nothing tells 0, 1, 2, 3 from upper halves.
  EXPECT_EQ(opened(write("dna.bin", bytes_of(std::vector<uint16_t>(20, 2))), blocks_of(4)).find("tokens")->dtype(),
            DType::kUint16);
  EXPECT_THAT(error_of([&] { opened(write("odd.bin", "12345"), blocks_of(1)); }),
              HasSubstr("no whole number of uint16"));
}

TEST(Tokens, ShardsHaveTheirOwnBlocks) {
  for (int i = 0; i < 3; ++i) {
    write("shards/x_train_" + std::to_string(i) + ".bin",
          with_header(20240520, 1, 6, bytes_of(counting<uint16_t>(static_cast<uint16_t>(10 * i), 6))));
  }
  write("shards/x_val_0.bin", with_header(20240520, 1, 5, bytes_of(counting<uint16_t>(90, 5))));
  const std::string folder = testing::TempDir() + "shards";
  for (const std::string& path : {folder, folder + "/x_train_*.bin"}) {
    const Dataset data = load(path, kFixed);
    EXPECT_EQ(data.num_samples(), 3);
    EXPECT_THAT(row(data, "input_ids", 1), ElementsAre(10, 11, 12, 13));
    EXPECT_THAT(row(data, "labels", 2), ElementsAre(21, 22, 23, 24));
  }
  ReadOptions tests;
  tests.role = DataRole::kEvaluate;
  EXPECT_THAT(row(load(folder, kFixed, tests), "input_ids", 0), ElementsAre(90, 91, 92, 93));
  EXPECT_THAT(error_of([&] { load(folder + "/y_*.bin", kFixed); }), HasSubstr("no file is named like"));
  EXPECT_THAT(error_of([&] { load(folder, kOpen, blocks_of(64)); }), HasSubstr("a sample needs 65 of one file"));
}

TEST(Tokens, FilesOfDifferentTypesAreWidenedUnlessOneWasGuessed) {
  write("mixed/a.npy", npy_header(DType::kUint16, {5}) + bytes_of(counting<uint16_t>(0, 5)));
  write("mixed/b.npy", npy_header(DType::kInt64, {5}) + bytes_of(counting<int64_t>(50, 5)));
  const Dataset data = load(testing::TempDir() + "mixed", kFixed);
  EXPECT_THAT(row(data, "labels", 0), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(row(data, "labels", 1), ElementsAre(51, 52, 53, 54));
  write("guessed/a.bin", bytes_of(counting<uint16_t>(100, 20)));
  write("guessed/b.bin", bytes_of(counting<uint32_t>(70000, 20)));
  EXPECT_THAT(error_of([&] { load(testing::TempDir() + "guessed", kFixed); }), HasSubstr("--token-type"));
  write("rank/a.npy", npy_header(DType::kInt64, {2, 2}) + bytes_of(counting<int64_t>(50, 4)));
  EXPECT_THAT(error_of([&] { load(testing::TempDir() + "rank/*.npy", kFixed); }), HasSubstr("one axis of integers"));
}

TEST(Tokens, LabelsStayWithinADocument) {
  const std::string path =
      write("ends.npy", npy_header(DType::kInt32, {5}) + bytes_of(std::vector<int32_t>{7, 1, 8, 0, 1}));
  ReadOptions options;
  options.document_end = 1;
  EXPECT_THAT(error_of([&] { load(path, kFixed, options); }), HasSubstr("ignores none"));
  options.ignored_label = -100;
  EXPECT_THAT(row(load(path, kFixed, options), "labels", 0), ElementsAre(1, -100, 0, 1));
  EXPECT_THAT(row(load(path, kFixed), "labels", 0), ElementsAre(1, 8, 0, 1));
}

TEST(Tokens, OtherInputsAreFilledAndItIsSaid) {
  const std::string path = write("five.bin", with_header(20240520, 1, 5, bytes_of(counting<uint16_t>(0, 5))));
  const Dataset data = load(path, kFixed);
  EXPECT_THAT(row(data, "attention_mask", 0), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(row(data, "position_ids", 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(open_data(path, kFixed).notes, ElementsAre(HasSubstr("'attention_mask'"), HasSubstr("'position_ids'")));
}

TEST(Tokens, TextIsBytes) {
  EXPECT_THAT(row(load(write("a.txt", "abcde"), kFixed), "labels", 0), ElementsAre('b', 'c', 'd', 'e'));
  const std::string lines = write("a.jsonl", "{\"text\": \"ab\"}\n\n{\"id\": 1, \"text\": \"\\u00e9\"}\n");
  EXPECT_THAT(row(load(lines, kFixed), "input_ids", 0), ElementsAre('a', 'b', 0, 0xc3));
  EXPECT_THAT(error_of([&] { load(write("b.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n"), kFixed); }),
              HasSubstr("b.jsonl, line 2"));
  EXPECT_THAT(error_of([&] { load(write("empty.txt", ""), kFixed); }), HasSubstr("it holds no tokens"));
}

TEST(Tokens, TextIsRefusedWhereTheModelTellsMoreTokensApartThanBytes) {
  const std::string path = write("tokens_of_a_tokenizer.txt", "abcdefgh");
  ReadOptions options = blocks_of(2);
  for (const int64_t vocabulary : {0, 256, 384}) {
    options.vocabulary = [=](const std::string&) { return vocabulary; };
    EXPECT_EQ(open_data(path, kOpen, options).find("tokens")->spec().shape, (Shape{3, 2}));
  }
  options.vocabulary = [](const std::string& input) { return input == "tokens" ? 50257 : 0; };
  EXPECT_THAT(error_of([&] { open_data(path, kOpen, options); }), HasSubstr("tells 50257 tokens of 'tokens' apart"));
  const std::string binary = write("tokens_of_a_tokenizer.bin", bytes_of(counting<uint16_t>(0, 8)));
  EXPECT_EQ(open_data(binary, kOpen, options).find("tokens")->spec().shape, (Shape{3, 2}));
}

TEST(Tokens, TheLengthOfABlockIsTheModelsOrGiven) {
  const std::string path = write("five.txt", "abcde");
  EXPECT_THAT(error_of([&] { load(path, kOpen); }), HasSubstr("--block-size"));
  EXPECT_THAT(error_of([&] { load(path, kFixed, blocks_of(3)); }),
              HasSubstr("--block-size is 3, but 'input_ids' takes"));
  const std::vector<InputSpec> pictures = {{"x", {DType::kFloat, Dims{"n", 3, 32, 32}}}};
  EXPECT_THAT(error_of([&] { load(path, pictures); }), HasSubstr("the model has no input int64[batch, tokens]"));
}

TEST(Tokens, TheFingerprintIsThatOfTokensAndBlocks) {
  const std::string path = write("same.txt", "abcdefghi");
  const auto of = [&](int64_t size) { return load(path, kOpen, blocks_of(size)).fingerprint(); };
  EXPECT_EQ(of(4), of(4));
  EXPECT_NE(of(4), of(3));
  EXPECT_NE(of(4), load(write("other.txt", "abcdefghj"), kOpen, blocks_of(4)).fingerprint());
}

SampleOptions with_fold(int64_t folds, int64_t fold) {
  SampleOptions options;
  options.folds = folds;
  options.fold = fold;
  return options;
}

TEST(Selection, FoldsPartTheSamples) {
  std::vector<int64_t> evaluated;
  for (int64_t fold = 1; fold <= 3; ++fold) {
    const SampleRows rows = select_samples(10, with_fold(3, fold), 5, 2, 0);
    EXPECT_EQ(rows.evaluation.size(), fold == 1 ? 4u : 3u);
    std::vector<int64_t> both = rows.training;
    both.insert(both.end(), rows.evaluation.begin(), rows.evaluation.end());
    std::sort(both.begin(), both.end());
    EXPECT_EQ(both, counting<int64_t>(0, 10));
    evaluated.insert(evaluated.end(), rows.evaluation.begin(), rows.evaluation.end());
  }
  std::sort(evaluated.begin(), evaluated.end());
  EXPECT_EQ(evaluated, counting<int64_t>(0, 10));
}

TEST(Selection, ASplitIsOfItsSeedAndOfTheLimitedSamples) {
  SampleOptions options;
  options.val_split = 0.2;
  options.limit = 20;
  const SampleRows rows = select_samples(1000, options, 1, 4, 0);
  EXPECT_EQ(rows.evaluation.size(), 4u);
  EXPECT_EQ(rows.training.size(), 16u);
  EXPECT_LT(rows.training.back(), 20);
  EXPECT_EQ(rows.evaluation, select_samples(1000, options, 1, 8, 0).evaluation);
  EXPECT_NE(rows.evaluation, select_samples(1000, options, 2, 4, 0).evaluation);
  EXPECT_EQ(select_samples(1000, options, 1, 3, /*fixed_batch=*/3).evaluation.size(), 3u);  // whole batches
  options.overfit_batches = 2;
  EXPECT_EQ(select_samples(1000, options, 1, 4, 0).training.size(), 8u);
  options.overfit_batches = 5;
  EXPECT_THAT(error_of([&] { select_samples(1000, options, 1, 4, 0); }), HasSubstr("more than the 16"));
  options.limit = 2;
  EXPECT_THAT(error_of([&] { select_samples(1000, options, 1, 4, 0); }), HasSubstr("leaves none for evaluation"));
}

TEST(Selection, WhatIsSkippedIsInNoPart) {
  SampleOptions options;
  options.skip = 7;
  options.limit = 10;
  EXPECT_EQ(select_samples(100, options, 1, 4, 0).training, counting<int64_t>(7, 10));
  options.val_split = 0.3;
  const SampleRows rows = select_samples(12, options, 1, 4, 0);  // five samples are left
  std::vector<int64_t> both = rows.training;
  both.insert(both.end(), rows.evaluation.begin(), rows.evaluation.end());
  std::sort(both.begin(), both.end());
  EXPECT_EQ(both, counting<int64_t>(7, 5));
  EXPECT_EQ(rows.evaluation.size(), 2u);
  EXPECT_EQ(error_of([&] { select_samples(7, options, 1, 4, 0); }), "--skip 7 of 7 samples leaves none");
}

std::map<int64_t, int> first_tokens(const Dataset& data, const Model& model, int64_t epoch) {
  DatasetBatches batches(&data, model, "step", 1, /*seed=*/3, /*shuffle=*/true);
  std::map<int64_t, int> counts;
  TensorMap batch;
  for (batches.start(epoch, 0); batches.next(&batch) > 0;) ++counts[batch.at("tokens").to_ints()[0]];
  return counts;
}

TEST(Tokens, SeveralSourcesAreReadWithTheSharesOfTheirWeights) {
  const std::string books = write("books.bin", bytes_of(std::vector<uint16_t>(41, 1)));  // 10 blocks of 4
  const std::string web = write("web/a.bin", bytes_of(std::vector<uint16_t>(81, 2)));
  write("web/b.bin", bytes_of(std::vector<uint16_t>(81, 2)));  // 40 blocks in both
  const std::string shards = testing::TempDir() + "web/*.bin";
  const Dataset plain = load(concat(books, ",", shards), kOpen, blocks_of(4));
  EXPECT_EQ(first_tokens(plain, Model(), 0), (std::map<int64_t, int>{{1, 10}, {2, 40}}));
  const std::string weighted = concat(books, ":0.6,", shards, ":0.4");
  const Dataset data = load(weighted, kOpen, blocks_of(4));
  for (const int64_t epoch : {0, 1}) {
    EXPECT_EQ(first_tokens(data, Model(), epoch), (std::map<int64_t, int>{{1, 30}, {2, 20}}));
  }
  EXPECT_THAT(open_data(weighted, kOpen, blocks_of(4)).notes,
              Contains(HasSubstr("books.bin: 60% of an epoch, each of its 10 blocks 3 times")));
  EXPECT_THAT(DatasetBatches(&data, Model(), "step", 1, 3, true).identity(), HasSubstr("in parts 10:0.6, 40:0.4"));
  ReadOptions tests = blocks_of(4);
  tests.role = DataRole::kEvaluate;
  EXPECT_TRUE(load(weighted, kOpen, tests).parts().empty());  // an evaluation reads each block once

  const auto refused = [&](const std::string& path) {
    return error_of([&] {
      const Dataset read = load(path, kOpen, blocks_of(4));
      DatasetBatches(&read, Model(), "step", 1, 3, true);
    });
  };
  EXPECT_THAT(refused(concat(books, ":0.5,", shards)), HasSubstr("has no weight, and others have"));
  EXPECT_THAT(refused(books + ":0"), HasSubstr("a weight is a number above 0"));
  EXPECT_THAT(refused(books + ":nan"), HasSubstr("a weight is a number above 0"));
  EXPECT_THAT(refused(concat(books, ":1e-9,", shards, ":1")), HasSubstr("less than one of the 50 samples"));
  EXPECT_THAT(refused(concat(books, ",missing.bin")), HasSubstr("there are no tokens at missing.bin"));
  EXPECT_THAT(refused("missing.bin"), HasSubstr("there is no data at missing.bin"));
  EXPECT_THAT(error_of([&] { DatasetBatches(&data, Model(), "step", 1, 3, /*shuffle=*/false); }),
              HasSubstr("--no-shuffle draws nothing"));
  const Dataset few = data.select({0, 1, 2});
  EXPECT_THAT(error_of([&] { DatasetBatches(&few, Model(), "step", 1, 3, true); }),
              HasSubstr("web/*.bin has the weight 0.4 and none of the selected samples"));
}

// A split is part of what a run means: it must not change from version to version.
TEST(Selection, StaysTheSame) {
  EXPECT_THAT(select_samples(10, with_fold(5, 2), 3, 1, 0).evaluation, ElementsAre(6, 8));
  EXPECT_THAT(grouped_order({{{0, 1, 2, 3}}, {{4}}}, 3, 0), ElementsAre(3, 4, 4, 0, 1));
}

TEST(Selection, ASelectionIsADatasetOfItsRows) {
  const std::vector<InputSpec> inputs = {{"x", {DType::kFloat, Dims{"n"}}}, {"y", {DType::kInt64, Dims{"n"}}, true}};
  const Dataset data({{"x", Tensor::of<float>({4}, {0, 1, 2, 3})}, {"y", Tensor::ints({5, 5, 5, 7})}}, inputs);
  const Dataset odd = data.select({1, 3});
  EXPECT_EQ(odd.num_samples(), 2);
  TensorMap batch;
  const int64_t samples[] = {1, 0};
  odd.gather(samples, 2, &batch);
  EXPECT_THAT(batch.at("y").to_ints(), ElementsAre(7, 5));
  EXPECT_EQ(odd.select({1}).row_of(0), 3);
  EXPECT_NE(odd.fingerprint(), data.fingerprint());
  EXPECT_EQ(odd.fingerprint(), data.select({1, 3}).fingerprint());
  const std::vector<SampleGroup> classes = groups_by_class(odd);
  ASSERT_EQ(classes.size(), 2u);
  EXPECT_THAT(classes[0].samples, ElementsAre(0));
  EXPECT_THAT(classes[1].samples, ElementsAre(1));
}

TEST(Selection, ClassesAreDrawnEvenly) {
  const std::vector<SampleGroup> classes = {{counting<int64_t>(0, 998)}, {{1000, 1001}}};
  const auto order = grouped_order(classes, 0, 0);
  EXPECT_EQ(order.size(), 1000u);
  EXPECT_EQ(std::count(order.begin(), order.end(), 1000), 250);
  EXPECT_EQ(std::count(order.begin(), order.end(), 1001), 250);
  EXPECT_NE(order, grouped_order(classes, 0, 1));
  EXPECT_NE(order, grouped_order(classes, 1, 0));
}

// Epochs go on where the one before ended: after three of them each of the 12 has come as often as any other.
TEST(Selection, AGroupGoesThroughAllItsSamples) {
  const std::vector<SampleGroup> groups = {{counting<int64_t>(0, 12), 1}, {counting<int64_t>(100, 4), 3}};
  EXPECT_THAT(shares_of(groups), ElementsAre(4, 12));
  std::map<int64_t, int> times;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (const int64_t sample : grouped_order(groups, 7, epoch)) ++times[sample];
  }
  for (const auto& [sample, count] : times) EXPECT_EQ(count, sample < 100 ? 1 : 9) << sample;
  EXPECT_EQ(times.size(), 16u);
  EXPECT_THAT(shares_of({{{0, 1, 2}, 1}, {{3, 4}, 2}}), ElementsAre(2, 3));  // 1.67 and 3.33
  EXPECT_THAT(shares_of({{{0}, 1}, {{1}, 1e-9}}), ElementsAre(2, 0));
}

TEST(Selection, OptionsThatDoNotGoTogetherAreRefused) {
  SampleOptions both = with_fold(2, 1);
  both.val_split = 0.5;
  EXPECT_THAT(error_of([&] { check_samples(both, false); }), HasSubstr("give one"));
  EXPECT_THAT(error_of([&] { check_samples(with_fold(2, 3), false); }), HasSubstr("--fold is 3"));
  EXPECT_THAT(error_of([&] { check_samples(with_fold(2, 0), false); }), HasSubstr("needs --fold"));
  EXPECT_THAT(error_of([&] { check_samples(with_fold(2, 1), true); }), HasSubstr("--eval-data"));
}

}  // namespace
}  // namespace onnx_train::tokens_test
